"""An experiment: the parts that a configuration names, built and wired in the one order that works."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import nn

import mrfquant.models  # noqa: F401 - registers the networks with gin
from mrfquant.compute import Team, bounded_network, carry_channels_last, synchronise_batch_norm
from mrfquant.config.settings import Positive, Seed, built, configurable, configured, makes
from mrfquant.data import STAND_IN, STAND_INS, Dataset
from mrfquant.errors import BadInput
from mrfquant.families import Form
from mrfquant.inference import Inference, Reference
from mrfquant.inference.groups import Groups
from mrfquant.inference.setup import Start
from mrfquant.labelling import Labelling
from mrfquant.objectives import CrossEntropy, Objective
from mrfquant.storage.weights import load_weights, read_weights
from mrfquant.training.collectors import Collector
from mrfquant.training.trainer import Trainer

SMOKE_ITERATIONS = 20
FITTED = 5_000  # images that a network may fit its start to
KINDS: dict[str, tuple[type, str]] = {
    "dataset": (Dataset, "a data set, as @digits"),
    "model": (nn.Module, "a network, as @LeNet300"),
    "optimizer": (torch.optim.Optimizer, "an optimizer, as @Adam"),
    "inference": (Inference, "a solver, as @ProximalMeanField"),
    "objective": (Objective, "an objective, as @CrossEntropy"),
}
DatasetRecipe = Annotated[Callable[..., Dataset], makes(*KINDS["dataset"])]
ModelRecipe = Annotated[Callable[..., nn.Module], makes(*KINDS["model"])]
OptimizerRecipe = Annotated[Callable[..., torch.optim.Optimizer], makes(*KINDS["optimizer"])]
InferenceRecipe = Annotated[Callable[..., Inference], makes(*KINDS["inference"])]
ObjectiveRecipe = Annotated[Callable[..., Objective], makes(*KINDS["objective"])]


@configurable(supplied=["device", "data_root", "team"])
class Experiment:
    """Data, network, solver, in that order; `trainer` adds the loop.

    The parts are recipes, named in gin without parentheses (`Experiment.model = @LeNet300`): each is built here with
    what the parts before it settle.

    Args:
        dataset: called with the data root.
        model: called with the shape of an input and the number of outputs: classes, tokens, targets.
        optimizer: called with the list of tensors to drive.
        inference: called with the labelling of the network and the optimizer's recipe.
        objective: the loss and the figures by which networks are judged.
        collectors: where figures go beside the console and metrics.jsonl, as [@TensorBoard()].
        weights: where to start from: a state dict (.pt, .safetensors) or the folder of a finished run; a labelled
            network keeps them with Experiment.start = 'weights'.
        seed: of initialisation, order of the data and augmentation.
        smoke: a few iterations on stand-in data of the data set's shape; a data set of your own stands in for itself.
        channels_last: the memory format of images between convolutions; faster on CPUs and GPUs.
        start, reach, form, learn_scale, groups, shard: of the solver, see `mrfquant.Inference` and
            `mrfquant.ProjectedInference`; its own defaults where nothing is said.
    """

    def __init__(
        self,
        dataset: DatasetRecipe,
        model: ModelRecipe,
        optimizer: OptimizerRecipe,
        inference: InferenceRecipe = Reference,
        seed: Seed = 0,
        smoke: bool = False,
        weights: str | None = None,
        objective: ObjectiveRecipe = CrossEntropy,
        collectors: Sequence[Collector] = (),
        channels_last: bool = True,
        start: Start | None = None,
        reach: Positive | None = None,
        form: Form | None = None,
        learn_scale: bool | None = None,
        groups: Groups | None = None,
        shard: bool | None = None,
        *,
        device: torch.device,
        data_root: Path,
        team: Team | None = None,
    ) -> None:
        self.seed, self.smoke, self.device, self.team = seed, smoke, device, team or Team()
        torch.manual_seed(seed)
        made = dataset(STAND_IN if smoke and dataset.__name__ in STAND_INS else data_root)
        self.dataset: Dataset = _built("dataset", made).to(device)
        self.objective: Objective = _built("objective", objective())
        self.collectors = collectors
        with bounded_network():
            self.model: nn.Module = _built("model", model(self.dataset.shape, self.dataset.outputs)).to(device)
        if fit_to := getattr(self.model, "fit_to", None):  # a start that depends on the data
            fit_to(next(iter(self.dataset.ordered("train", FITTED)))[0])
        if weights is not None:
            load_weights(self.model, read_weights(Path(weights)), Path(weights))
        if channels_last:
            carry_channels_last(self.model)
        self.started_from = weights
        self.objective.attach(self.model)
        if self.team.world_size > 1:
            self.model = synchronise_batch_norm(self.model, device)
        self.labelling = configured(Labelling, model=self.model)
        settings: dict[str, Any] = {"start": start, "reach": reach, "form": form, "learn_scale": learn_scale}
        settings |= {"groups": groups, "shard": shard}
        given = {name: value for name, value in settings.items() if value is not None}
        _check_taken(inference, given)
        self.inference: Inference = _built("inference", inference(self.labelling, optimizer, **given))

    def check_teacher(self) -> None:
        """Refuse to start a run that would learn from a random network."""
        if self.objective.needs_teacher and self.started_from is None and not self.smoke:
            raise BadInput(
                f"{type(self.objective).__name__} needs the network that the run starts from as a teacher: it is "
                "random, so give trained weights with --weights FILE, or take no teacher (Distillation.share = 0.0)",
                binding="Experiment.objective",
            )

    def check_trains(self) -> None:
        """Refuse to train a network whose labels come from rounding."""
        if not self.inference.trains:
            raise BadInput(
                f"{type(self.inference).__name__} holds the labels that mrfquant round gives to a trained network, and "
                "cannot be trained: repeat the mrfquant round command with its --out, or set Experiment.inference",
                binding="Experiment.inference",
            )

    def trainer(self) -> Trainer:
        """Build the loop over these parts, with the settings that gin has for it."""
        limit = SMOKE_ITERATIONS if self.smoke else None
        parts = {"model": self.model, "dataset": self.dataset, "inference": self.inference}
        parts["objective"] = self.objective
        return configured(Trainer, **parts, seed=self.seed, limit=limit, team=self.team)

    def identity(self) -> dict[str, Any]:
        """Describe what is run, for summaries and titles."""
        return {
            "method": self.inference.method,
            "model": getattr(self.model, "name", type(self.model).__name__.lower()),
            "dataset": self.dataset.name,
            "stand_in": self.dataset.stand_in,
            "seed": self.seed,
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "labelled": len(self.labelling),
            "metric": self.objective.primary_metric.as_fields(),
            "bits": max((block.levels.bits for block in self.labelling.blocks), default=32),
        }


def _built(slot: str, part: Any) -> Any:
    return built(f"Experiment.{slot}", part, *KINDS[slot])


def _check_taken(inference: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Refuse a setting that the solver does not take."""
    for name in given.keys() - inspect.signature(inference).parameters.keys():
        solver = getattr(inference, "__name__", type(inference).__name__)
        raise BadInput(
            f"Experiment.{name} is a setting of solvers, and {solver} does not take it: leave it out, or let the class "
            f"hand **settings on to its base",
            f"Experiment.{name}",
        )
