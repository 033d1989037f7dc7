"""The interface of a solver: it owns the variables, takes the loss's gradient and writes the network's weights."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Annotated, Any

from torch import Tensor

from mrfquant.config.settings import Positive, checked, makes
from mrfquant.energies import Energy, FirstOrderTaylor
from mrfquant.errors import BadInput
from mrfquant.families import Distribution
from mrfquant.inference.answers import Answers
from mrfquant.inference.checks import CHECK_INTERVAL, check_solver
from mrfquant.inference.distributed import Processes
from mrfquant.inference.frozen import FrozenParameters
from mrfquant.inference.groups import Groups
from mrfquant.inference.learned_scales import LearnedScales
from mrfquant.inference.optimizer import OptimizerRecipe, SolverOptimizer
from mrfquant.inference.report import Report
from mrfquant.inference.setup import Start, set_up
from mrfquant.labelling import Block, Labelling
from mrfquant.schedules import Constant, Schedule


class Inference(Answers, SolverOptimizer):
    """Minimises an energy over a labelling, one step per gradient of the loss:

        loss(model(x)).backward()
        inference.step()

    A subclass is mathematics: where its variables start, how a step updates them, which weights they stand for and how
    they round. Annealing, free parameters, learned scales, processes, reports and checkpoints surround it.

    Args:
        labelling: the network's parameters.
        optimizer: called with the list of tensors to drive: the variables of each block, then the free parameters.
        beta: the inverse temperature as a function of the iteration.
        energy: the model of the loss; first-order by default.
        start: 'random', as in the paper; 'weights', at the weights that the network has, which the levels have to
            reach (take a labelling with scales); 'labels', at those of a network that has been rounded, whose scales
            are read off its weights.
        reach: how far the levels go for 'weights', in mean magnitudes of these: 2 reaches nine of ten weights; a deep
            network with batch norm needs 4 to begin where the float one is.
        learn_scale: let the optimizer move the labelling's scales together with the variables.
        groups: settings of the optimizer for some parameters, as {"norms and biases": {"weight_decay": 0.0}}. A key is
            a pattern of names, 'labelled', 'norms and biases', 'scales' (the learned ones), a name that
            `Labelling.which` takes, or a function from the network to names; the first that fits counts.
        shard: let processes that train together share the variables, each with the network's weights and gradient in
            full; for solvers, energies and optimizers that treat each weight by itself.

    Attributes:
        variables: one tensor per block, with the weights along the last dimension; this process's shard of them.
        iteration: steps done.
        budget: steps there will be in all, for schedules that end with the run; see `prepare`.
    """

    method: str  # the name in results
    needs_levels = True
    relaxed = True  # whether the network computes with other weights than the rounded ones while training
    trains = True  # whether a run may train with it; if not, the labels come from elsewhere
    samples = False  # whether it computes with weights that are drawn, not with their expectation
    by_weight = False  # whether `update`, `write` and `labels` treat each weight by itself; see `shard`

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "by_weight" not in vars(cls) and {"update", "write", "labels"} & set(vars(cls)):
            cls.by_weight = False  # what the parent says is not about these

    @checked
    def __init__(
        self,
        labelling: Labelling,
        optimizer: OptimizerRecipe,
        beta: Schedule | None = None,
        energy: Energy | None = None,
        *,
        start: Start = "random",
        reach: Positive = 2.0,
        learn_scale: bool = False,
        groups: Groups | None = None,
        shard: bool = False,
    ) -> None:
        if not labelling.blocks and self.needs_levels:
            raise BadInput(f"{type(self).__name__} needs levels to choose from: set Labelling.levels, as in [-1, 1]")
        optimizer_groups = set_up(labelling, start, reach, learn_scale, groups, shard)
        self.labelling, self.energy = labelling, energy or FirstOrderTaylor()
        self.schedule, self.iteration = beta or Constant(1.0), 0
        self.budget: int | None = None
        self.learned_scales = LearnedScales(labelling) if learn_scale else None
        self.finalized = self._begun = False
        self.has_beta = self.relaxed and beta is not None
        self.warned: set[str] = set()  # what has been said once
        self.blocked = ""  # why no step can be taken now
        self.processes = Processes(self)
        self.energy.attach(labelling)
        self.bind(start)
        self.variables = [self._first(block, start) for block in labelling.blocks]
        self.drive(self.variables, optimizer, optimizer_groups)
        self.write_all()
        self.report = Report(self)

    def _first(self, block: Block, start: Start) -> Tensor:
        """Start a whole block, since that may depend on all of a layer, and keep this process's shard."""
        if start == "random":
            x = self.start(block, lambda: self.processes.drawn(block))
            return self.processes.own(block, x.clone() if x.data_ptr() == block.w.data_ptr() else x)
        w = block.unscaled_weights()
        return self.processes.own(block, self.start_at(block, w.clone() if w is block.w else w))

    def bind(self, start: str) -> None:
        """Prepare for the labelling, which is laid out now, before the variables start."""

    def prepare(self, budget: int, temperature: float = 1.0) -> None:
        """Tell the solver, before its first step, the number of steps, and what the loss divides outputs by."""
        self.budget = budget
        self.energy.prepare(budget, temperature)

    @abstractmethod
    def start(self, block: Block, draw: Callable[[], Tensor]) -> Tensor:
        """Return the block's variables at the start; `draw` gives random weights (m,), new ones at each call."""

    def start_at(self, block: Block, w: Tensor) -> Tensor:
        """Return the block's variables for weights w (m,) that the network has, in units of the levels."""
        raise BadInput(f"{type(self).__name__} cannot start at a network's weights: leave out start")

    @abstractmethod
    def update(self, block: Block, x: Tensor) -> Tensor | None:
        """Return the gradient along which the optimizer moves x, or move x here and return None.

        `block.g` has the gradient of the loss with respect to the weights, and may be overwritten.
        """

    @abstractmethod
    def write(self, block: Block, x: Tensor) -> None:
        """Bring x back to where it is allowed, in place, and write the block's weights, with their scales."""

    @abstractmethod
    def labels(self, block: Block, x: Tensor) -> Tensor:
        """Return the label that each weight would be rounded to: int32 (m,)."""

    def fused_update(self, block: Block, x: Tensor) -> bool:
        """Do what `update`, the optimizer and `write` would do, and clear `block.g`, where there is a faster way."""
        return False

    def restore(self, block: Block, x: Tensor) -> None:
        """Rebuild what the solver keeps besides x and the weights, when both were just loaded."""

    def distribution(self, block: Block, x: Tensor) -> Distribution | None:
        """Return the present distribution over the labels of a block, or None for a solver that has none."""
        return None

    def own_state(self) -> dict[str, Any]:
        """Return what the solver keeps from step to step besides its variables: tensors, numbers, lists and dicts."""
        return {}

    def load_own_state(self, state: dict[str, Any]) -> None:
        """Go on from what `own_state` of the same solver returned."""

    def items(self) -> Iterator[tuple[Block, Tensor]]:
        """Return every block with its variables: this process's shards, where processes share them."""
        return zip(self.labelling.local_blocks, self.variables, strict=True)

    @property
    def beta(self) -> float:
        """The inverse temperature in force."""
        return self.schedule(self.iteration, self.budget)

    def begin(self) -> None:
        """Collect the gradient that backward has left and tell the energy; once before each step."""
        if not self._begun:
            self.labelling.labelled.collect()
            self.labelling.free.collect()
            if self.energy.begins:
                self.energy.begin_step(self.iteration, self.distributions)
            self._begun = True

    def take_step(self) -> None:
        if self.blocked:
            raise BadInput(self.blocked)
        if self.iteration % CHECK_INTERVAL == 0:
            self.processes.start_alike()
            check_solver(self)
        self.begin()
        labelling, scales, frozen = self.labelling, self.learned_scales, None
        if labelling.labelled.any_frozen or labelling.free.any_frozen:
            frozen = FrozenParameters(labelling, self.variables, scales)
        if scales is not None:
            scales.set_gradient()
        self.push_hyperparameters()
        waiting = []
        for block, x in zip(labelling.local_blocks, self.variables, strict=True):
            if scales is not None or frozen is not None or not self.fused_update(block, x):
                x.grad = self.update(block, x)
                waiting.append((block, x))
        if waiting or labelling.free.w.numel():
            labelling.free.w.grad = labelling.free.g  # zero_grad takes it away
            self.move_variables()
            if frozen is not None:
                frozen.restore()
            if scales is not None:
                scales.apply()
        self.iteration += 1
        for block, x in waiting:
            x.grad = None  # it may lie in a place that `write` writes to
            self.write(block, x)
        if frozen is not None:
            frozen.restore()  # beta has moved the weights of variables that stay
        if labelling.sharded:
            labelling.gather_weights()
        labelling.labelled.publish()
        labelling.free.publish()
        labelling.free.zero_gradient()
        if waiting or labelling.sharded:  # fused updates have cleared what they used
            labelling.labelled.zero_gradient()
        self._begun = False


InferenceRecipe = Annotated[Callable[..., Inference], makes(Inference, "a solver of networks, as @ProximalMeanField")]
