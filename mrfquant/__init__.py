"""mrfquant: quantizing neural networks by inference in Markov random fields."""
