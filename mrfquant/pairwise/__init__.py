"""Couplings between the weights of a layer: its curvature, and exact inference on trees of the strongest."""
