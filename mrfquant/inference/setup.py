"""How a labelling is prepared for a solver: its layout in memory, its scales, the groups of the optimizer."""

from __future__ import annotations

from typing import Literal

from mrfquant.errors import BadSetting
from mrfquant.inference.groups import Groups, OptimizerGroups
from mrfquant.labelling import Labelling

Start = Literal["random", "weights", "labels"]


def set_up(
    labelling: Labelling, start: Start, reach: float, learn_scale: bool, groups: Groups | None, shard: bool
) -> OptimizerGroups:
    """Lay the labelling out by groups and shards, and fit its scales to the start; see `Inference`."""
    found = OptimizerGroups.for_labelling(labelling, groups)
    if learn_scale and labelling.scales is None:
        raise BadSetting("Experiment.learn_scale", True, "False where there is no scale: set Labelling.scale")
    if found.of_scales and not learn_scale:
        raise BadSetting("Experiment.groups", {"scales": ...}, "learn_scale = True with settings of scales")
    if shard or found.of_parameter is not None:
        labelling.lay_out(found.of_parameter, shard)
    if start == "weights":
        labelling.fit_scales(reach)
    elif start == "labels":
        labelling.read_scales()
    return found
