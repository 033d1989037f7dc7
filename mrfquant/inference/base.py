"""The interface of a solver: it owns the variables, takes the loss's gradient and writes the network's weights."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from mrfquant.compute import present_team, widest
from mrfquant.config.settings import makes
from mrfquant.energies import Energy, FirstOrderTaylor
from mrfquant.errors import BadInput, RunFailed
from mrfquant.inference.as_optimizer import OptimizerRecipe
from mrfquant.inference.processes import InProcesses
from mrfquant.labelling import Block, Labelling
from mrfquant.schedules import Constant, Schedule

CHECK_INTERVAL = 100  # steps between two looks for what would go wrong silently
MANY_UNDECIDED = 0.05  # share of the weights that rounding may surprise


class Inference(InProcesses):
    """Minimises an energy over a labelling, one step per gradient of the loss:

        loss(model(x)).backward()
        inference.step()

    A step turns the gradient into one on the solver's variables (`gradient`), lets the optimizer move them, and sets
    the weights from where they are now (`project`). A subclass writes these two, the variables' start, and how they
    are rounded; the base does the rest: annealing, free parameters, diagnostics, state.

    Args:
        labelling: the network's parameters.
        optimizer: called with the list of tensors to drive: the variables of each block, then the free parameters; in
            groups with their settings if the labelling has such.
        beta: the inverse temperature as a function of the iteration.
        energy: the model of the loss; first-order by default.

    Attributes:
        variables: one tensor per block.
        iteration: steps done.
        budget: steps there will be in all, for schedules that end with the run; see `prepare`.
        watched: whether the next step is to note the values of the energy; see `energies`.
    """

    method: str  # the name in results
    needs_levels = True
    relaxed = True  # whether the network computes with other weights than the rounded ones while training

    def __init__(
        self,
        labelling: Labelling,
        optimizer: OptimizerRecipe,
        beta: Schedule | None = None,
        energy: Energy | None = None,
    ) -> None:
        if not labelling.blocks and self.needs_levels:
            raise BadInput(f"{type(self).__name__} needs levels to choose from: set Labelling.levels, as in [-1, 1]")
        self.labelling, self.energy = labelling, energy or FirstOrderTaylor()
        if labelling.sharded:
            self.check_parts()
            self._share_weights()
        self.energy.attach(labelling)
        self.schedule = beta or Constant(1.0)
        self.iteration = 0
        self.budget: int | None = None
        self.watched = False
        self._values: dict[str, Tensor] = {}
        # Whole blocks start, since a start may depend on all of a layer, and this process keeps its part.
        self.variables = [self._own(block, self._first(block)) for block in labelling.blocks]
        super().__init__(labelling, self.variables, optimizer)
        self._finalized = False
        self.project_all()
        self._looked = self._look()

    def prepare(self, budget: int, temperature: float = 1.0) -> None:
        """Tell the solver about the run, before its first step.

        Args:
            budget: how many steps there will be in all.
            temperature: what the loss divides the network's outputs by.
        """
        self.budget = budget
        self.energy.prepare(budget, temperature)

    @abstractmethod
    def start(self, block: Block, draw: Callable[[], Tensor]) -> Tensor:
        """The block's variables at the start; `draw` gives random initial weights (m,), new ones at each call."""

    def start_at(self, block: Block, w: Tensor) -> Tensor:
        """The block's variables for weights w (m,) that the network has, in units of the levels."""
        raise BadInput(f"{type(self).__name__} cannot start at a network's weights: leave out Labelling.start")

    @abstractmethod
    def gradient(self, block: Block, x: Tensor) -> Tensor | None:
        """The gradient that the optimizer moves the variables x along; None leaves x alone. May overwrite `block.g`."""

    @abstractmethod
    def project(self, block: Block, x: Tensor) -> None:
        """Bring x back to where it is allowed, in place, and write the block's weights."""

    @abstractmethod
    def labels(self, block: Block, x: Tensor) -> Tensor:
        """The label that each variable would be rounded to: int32 (m,)."""

    def step_at_once(self, block: Block, x: Tensor) -> bool:
        """Do what `gradient`, the optimizer and `project` would do, and clear `block.g`, where there is a faster way.

        Returns:
            Whether it is done.
        """
        return False

    def restore(self, block: Block, x: Tensor) -> None:
        """Rebuild what the solver keeps besides x and the weights, when both were just loaded."""

    def marginals(self, block: Block, x: Tensor) -> Tensor | None:
        """The present u in the block's form, or None for a solver that has none."""
        return None

    def marginal_parts(self, block: Block, x: Tensor) -> Iterator[Tensor]:
        """The same for some variables after the other, where u is not kept and takes much memory; nothing without u."""
        if (u := self.marginals(block, x)) is not None:
            yield u

    def items(self) -> Iterator[tuple[Block, Tensor]]:
        """Every block with its variables; its part of them, where processes share them out."""
        return zip(self.labelling.parts, self.variables, strict=True)

    @property
    def beta(self) -> float:
        """The inverse temperature in force."""
        return self.schedule(self.iteration, self.budget)

    def take_step(self) -> None:
        """One update from the gradient that backward has left; the gradient is cleared."""
        if self._finalized:
            raise BadInput("the solver is finalized: its network is an ordinary one, label it again to go on")
        if self.iteration % CHECK_INTERVAL == 0:
            self._check()
        if not self._shared:
            self._share()
        self.labelling.gradients()  # collects them
        frozen = self.labelling.frozen(self.variables)
        if (scales := self.labelling.learned) is not None:
            known, self._scale_gradient = self._scale_gradient, None
            whole = self.labelling.labelled
            scales.log.grad = scales.gradient(whole.g, whole.w) if known is None else known
        self.energy.iteration = self.iteration
        self.energy.begin_step((block, self.marginals(block, x)) for block, x in self.items())
        if self.watched:
            self._values, self.watched = self._values_of_energy(), False
        self.hand_on_settings()
        done = [not frozen and scales is None and self.step_at_once(block, x) for block, x in self.items()]
        for (block, x), is_done in zip(self.items(), done, strict=True):
            x.grad = None if is_done else self.gradient(block, x)
        self.labelling.free.w.grad = self.labelling.free.g  # zero_grad takes it away
        if not all(done) or len(self.labelling.free):
            self.move_variables()
        for part, before in frozen:
            part.copy_(before)
        if scales is not None:
            scales.write()
        for x in self.variables:
            x.grad = None  # it may lie in a place that `project` writes to
        self.iteration += 1
        self._project([item for item, is_done in zip(self.items(), done, strict=True) if not is_done])
        if all(done) and not self.labelling.sharded:
            self.labelling.free.zero_gradient()
        else:
            self.labelling.zero_gradient()

    @torch.no_grad()
    def project_all(self) -> None:
        """Set the network's weights from the variables."""
        self._project(self.items())

    def _project(self, items: Iterable[tuple[Block, Tensor]]) -> None:
        for block, x in items:
            self.project(block, x)
        self.labelling.gather_weights()
        self.labelling.publish()

    def finalize(self, decide: Decision | None = None) -> nn.Module:
        """End training: the network becomes an ordinary one, without a solver, each labelled weight exactly on a level.

        It can be saved, exported, packed (with the labelling) or trained further by other means. Done twice, it changes
        nothing.

        Args:
            decide: chooses the labels, as `mrfquant.Jointly(batches)` does; by default each weight takes its likeliest.

        Returns:
            The network.
        """
        if not self._finalized:
            undecided = 1 - self._share_decided()
            if decide is None and undecided > MANY_UNDECIDED:
                warnings.warn(
                    f"{undecided:.1%} of the weights are undecided, rounding changes the network: let beta end higher, "
                    "train longer, or decide by Jointly",
                    stacklevel=2,
                )
            with self.rounded() if decide is None else self._weights(decide(self)):
                self.labelling.release()
            self._finalized = True
        return self.labelling.model

    @contextmanager
    def rounded(self) -> Iterator[None]:
        """Within the block the network computes with the answer: each labelled weight exactly on a level."""
        with self._weights([self.labels(*item) for item in self.items()]):
            yield

    @torch.no_grad()
    def adopt(self, labels: Sequence[Tensor]) -> None:
        """Let training go on from labels, (m,) for every block: the variables that would be rounded to another one move
        to where theirs has nearly all probability; the others stay."""
        for (block, x), chosen in zip(self.items(), labels, strict=True):
            there = self.start_at(block, block.q[chosen.long()])
            x.copy_(torch.where(self.labels(block, x) == chosen, x, there))
        self.project_all()
        self.labelling.accept_weights()

    @torch.no_grad()
    def decided(self, threshold: float = 0.99) -> list[Tensor] | None:
        """Whether a label has at least the probability `threshold`, bool (m,) for every block; None without a u."""
        return self._of_u(lambda block, u: block.decided(u, threshold))

    @contextmanager
    def sampled(self, generator: torch.Generator | None = None) -> Iterator[None]:
        """Within the block the network computes with labels drawn from u."""
        if self.labelling.sharded:
            raise BadInput("labels are drawn from all of u, of which every process has a part: do it in one process")
        if (labels := self._of_u(lambda block, u: block.sample(u, generator))) is None:
            raise BadInput(f"{type(self).__name__} has no distribution over labels to sample from")
        with self._weights(labels):
            yield

    @contextmanager
    def _weights(self, labels: list[Tensor]) -> Iterator[None]:
        if self._finalized:
            yield  # it is
            return
        self.labelling.check_not_replaced()
        self.labelling.labelled.check_not_written()
        kept = self.labelling.labelled.w.clone()
        with torch.no_grad():
            for block, chosen in zip(self.labelling.parts, labels, strict=True):
                block.write_labels(chosen)
            self.labelling.labelled.gather_weights()
            self.labelling.labelled.publish()
        try:
            yield
        finally:
            self.labelling.labelled.w.copy_(kept)
            self.labelling.labelled.publish()

    def settings(self) -> dict[str, float]:
        """What is in force now, known without touching a tensor."""
        return {"learning_rate": self.param_groups[0]["lr"]}

    def energies(self) -> dict[str, float]:
        """The values of the energy, or of those that it is the sum of, at the last step that was watched, by name.

        That of the first-order model alone is left out: <g, w> of one batch. Waits for the device.
        """
        return {name: value.item() for name, value in self._values.items()}

    def _values_of_energy(self) -> dict[str, Tensor]:
        """Over all blocks; nothing for a solver without u."""
        total: dict[str, Tensor] = {}
        if type(self.energy) is FirstOrderTaylor:
            return total
        for block, x in self.items():
            if (u := self.marginals(block, x)) is not None:
                for name, value in self.energy.values(block, u).items():
                    total[name] = total[name] + value if name in total else value
        return total

    @torch.no_grad()
    def diagnostics(self) -> dict[str, float]:
        """The state of the labels: the share that changed since the last look; if there is a u, its mean entropy in
        bits per weight and the share of weights it has decided."""
        m = len(self.labelling)
        if not m:
            return {}
        figures = {}
        labels = self._look()
        flips = sum((a != b).sum().item() for a, b in zip(labels, self._looked, strict=True))
        figures["flips"] = self._of_all(flips) / m
        self._looked = labels
        if (entropies := self._of_u(Block.entropy)) is not None:
            sums = (entropy.sum(dtype=widest(entropy.device)).item() for entropy in entropies)
            figures["entropy"] = self._of_all(sum(sums)) / m
            figures["decided"] = self._share_decided()
        return figures

    @torch.no_grad()
    def layer_entropy(self) -> dict[str, float]:
        """Mean entropy of u in bits per weight for every labelled parameter; nothing for a solver without u."""
        if not (found := self._of_u(Block.entropy)):
            return {}
        labelled = self.labelling.labelled
        entropies, own = torch.cat([labelled.w[:0], *found]), labelled.own  # the blocks are one after another
        spans = [(max(first, own.start), min(last, own.stop)) for first, last in labelled.spans.values()]
        sums = torch.stack([entropies[a - own.start : max(a, b) - own.start].sum() for a, b in spans])
        if self.labelling.sharded:
            present_team().total(sums)
        sizes = [last - first for first, last in labelled.spans.values()]
        return {n: bits / size for n, bits, size in zip(labelled.spans, sums.tolist(), sizes, strict=True)}

    def solution(self) -> dict[str, Any]:
        """Where the solver stands, without what it needs only to go on: enough to round or to sample again.

        Processes that share the variables out all have to ask; the first one gets what one process alone would have,
        on the host.
        """
        return {
            "iteration": self.iteration,
            "budget": self.budget,
            "variables": self._joined(self.variables),
            "w": self.labelling.labelled.w,
            "levels": [list(block.levels.values) for block in self.labelling.blocks],
            "scale": self.labelling.scale,
            "free": self.labelling.free.w,
            "order": self.labelling.order,
            "energy": self.energy.state_dict(),
        }

    @torch.no_grad()
    def load_solution(self, solution: dict[str, Any]) -> None:
        """Stand where a solver of the same kind on the same labelling stood."""
        labelling = self.labelling
        whole = [(*x.shape[:-1], b.m) for b, x in zip(labelling.blocks, self.variables, strict=True)]
        given = [tuple(x.shape) for x in (*solution["variables"], solution["w"], solution["free"])]
        fits = [*whole, (len(labelling),), (len(labelling.free),)] == given
        fits = fits and (labelling.scale is None) == (solution["scale"] is None)
        fits = fits and labelling.order == solution.get("order")  # older files have none, nor groups
        levels = [list(block.levels.values) for block in labelling.blocks]
        if not fits or solution.get("levels", levels) != levels:  # older files have no levels
            raise BadInput(
                "the saved state does not fit: it is of another network, other levels or groups, or another kind of "
                "solver"
            )
        self.iteration = solution["iteration"]
        self.budget = self.budget or solution.get("budget")
        for block, x, saved in zip(labelling.blocks, self.variables, solution["variables"], strict=True):
            x.copy_(self._own(block, saved))
        self.labelling.labelled.w.copy_(solution["w"])
        self.labelling.free.w.copy_(solution["free"])
        if self.labelling.scale is not None:
            self.labelling.scale.copy_(solution["scale"])  # blocks have views of it
        if self.labelling.learned is not None:
            self.labelling.learned.read()
        if energy := solution.get("energy"):  # not there in older files
            self.energy.load_state_dict(energy)
        for block, x in self.items():
            self.restore(block, x)
        self.labelling.publish()
        self.labelling.accept_weights()

    def state_dict(self) -> dict[str, Any]:
        """Everything that a later `load_state_dict` needs to go on as if nothing had happened."""
        return {**self.solution(), "optimizer": self.inner_state(), "looked": self._joined(self._looked)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state of the same solver on the same labelling."""
        self.load_solution(state)
        self.load_settings(state["optimizer"])
        self._looked = [self._own(b, x) for b, x in zip(self.labelling.blocks, state["looked"], strict=True)]

    def _check(self) -> None:
        """Notice what would go wrong silently. Waits for the device."""
        self.labelling.check_not_replaced()
        self.labelling.check_all_known()
        if self._shared:
            self.labelling.labelled.check_not_written()
        broken = not all(x.isfinite().all() for x in (*self.variables, self.labelling.free.w))
        if self.labelling.sharded:
            broken = present_team().any(broken, self.labelling.labelled.w.device)  # or the others would wait for ever
        if broken:
            raise RunFailed(
                f"the solver's variables are not numbers any more at step {self.iteration}: a gradient was infinite or "
                "none; lower the learning rate, or clip gradients"
            )

    def _share_decided(self) -> float:
        """Of all weights, by u; 1 for a solver without u."""
        if not (found := self.decided()):
            return 1.0
        return self._of_all(sum(decided.sum().item() for decided in found)) / len(self.labelling)

    def _look(self) -> list[Tensor]:
        """The labels of every block, small and on the host."""
        return [self.labels(b, x).to("cpu", torch.uint8 if b.d <= 256 else torch.int32) for b, x in self.items()]

    def _of_u(self, function: Callable[[Block, Tensor], Tensor]) -> list[Tensor] | None:
        """What a function says about the u of each variable (m,), for every block; None for a solver without u."""
        found = []
        for block, x in self.items():
            parts = [function(block, u) for u in self.marginal_parts(block, x)]
            if not parts:
                return None
            found.append(parts[0] if len(parts) == 1 else torch.cat(parts))
        return found

    def _first(self, block: Block) -> Tensor:
        """The variables at the start, at the network's weights or at random."""
        if self.labelling.start != "random":
            return self.start_at(block, block.unscaled_weights().clone())
        return self.start(block, lambda: self._draw(block))

    def _draw(self, block: Block) -> Tensor:
        drawn = self.labelling.initial_weights()
        if self.labelling.sharded:
            present_team().broadcast(drawn)
        return drawn[block.start : block.start + block.m]


Decision = Callable[[Inference], list[Tensor]]  # gives labels, int32 (m,) for every block
InferenceRecipe = Annotated[Callable[..., Inference], makes(Inference, "a solver of networks, as @ProximalMeanField")]
