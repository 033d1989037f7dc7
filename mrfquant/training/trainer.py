"""The training loop: iterations, evaluation of the rounded network, checkpoints."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mrfquant.compute import Team, computes_bfloat16
from mrfquant.config.settings import Count, Positive, configurable
from mrfquant.data import Dataset
from mrfquant.errors import BadSetting, Diverged
from mrfquant.inference import Inference
from mrfquant.inference.checks import WARN_AFTER, check_solver
from mrfquant.metric import is_number
from mrfquant.objectives import CrossEntropy, Objective, outputs_of
from mrfquant.packing.runs import packing_record
from mrfquant.schedules import Constant, Schedule
from mrfquant.storage.checkpoints import Checkpoints
from mrfquant.training.collectors import Collector
from mrfquant.training.evaluation import evaluate, sums_of

AGREE_INTERVAL = 10  # iterations
WARN_GAP = 5.0  # points between the relaxed and the rounded network, late in a run
RELAXED_SHARE, LARGE = 5, 5_000  # the relaxed network sees a fifth of a large validation set


class Interrupted(Exception):
    """The run was asked to stop and has saved its state; `signal` is what asked, if it was one."""

    signal: int = 0


class Hook:
    """The interface: override what you need, and name it in gin as `Trainer.hooks = [@MyHook()]`.

    A hook sees the trainer, and with it the network, the solver and the data; `trainer.say` prints a line. Draw from a
    generator of your own: the run's random numbers belong to the run.

    Attributes:
        every: how many iterations lie between two calls of `step`; 0 for none.
    """

    every: int = 0

    def step(self, trainer: Trainer) -> None:
        """Act after every so many iterations."""

    def evaluated(self, trainer: Trainer) -> Mapping[str, float] | None:
        """Act at each evaluation, with the rounded weights in place; the figures it returns are recorded."""

    def ended(self, trainer: Trainer, figures: Mapping[str, float]) -> None:
        """Act at the end, with the best network in place and its test figures."""


@configurable(supplied=["model", "dataset", "inference", "objective", "seed", "limit", "team"])
class Trainer:
    """Minimises the objective of `model` with `inference`; the best on validation is the result.

    Args:
        iterations: steps in all, `limit` at most; nothing here counts epochs.
        batch_size: examples per step.
        eval_interval: evaluate on validation and save a checkpoint every so many iterations.
        log_interval: record the mean training loss every so many iterations (the loop's only other sync).
        learning_rate: factor on the optimizer's learning rate, a function of the iteration.
        precision: of forward, backward and validation, tests are in float32; 'auto' is bfloat16 autocast where the
            device has instructions for it, float32 elsewhere.
        compile: run the network through torch.compile.
        per_layer: record the entropy of every labelled parameter at each evaluation, too.
        clip: the largest norm that the gradient of all parameters may have; None leaves it as it is.
        hooks: what else to do every few iterations, at evaluations and at the end.
        objective: the loss and the figures; cross-entropy by default.
    """

    def __init__(
        self,
        model: nn.Module,
        dataset: Dataset,
        inference: Inference,
        *,
        iterations: Count,
        batch_size: Count = 100,
        eval_interval: Count = 500,
        log_interval: Count = 100,
        learning_rate: Schedule | None = None,
        precision: Literal["float32", "bfloat16", "auto"] = "float32",
        compile: bool = False,
        per_layer: bool = False,
        clip: Positive | None = None,
        hooks: Sequence[Hook] = (),
        objective: Objective | None = None,
        seed: int = 0,
        limit: int | None = None,
        team: Team | None = None,
    ) -> None:
        self.model, self.dataset, self.inference = model, dataset, inference
        self.iterations = iterations if limit is None else min(iterations, limit)
        self.eval_interval, self.log_interval = eval_interval, log_interval
        self.learning_rate = learning_rate or Constant(1.0)
        self.objective = objective or CrossEntropy()
        self.per_layer, self.clip, self.hooks = per_layer, clip, hooks
        self.team = team or Team()
        self.device = dataset.device
        self.batch_size, self.seed = batch_size, seed
        self.batches = dataset.stream(batch_size, seed, self.team.rank, self.team.world_size)
        self.low = precision == "bfloat16" or (precision == "auto" and computes_bfloat16(self.device))
        self.autocast = torch.autocast(self.device.type, torch.bfloat16, enabled=self.low)
        self.forward: Callable[..., Tensor] = torch.compile(model) if compile else model

        inference.prepare(self.iterations, self.objective.temperature)
        self.checkpoints: Checkpoints | None = None
        self.collectors: Sequence[Collector] = ()
        self.iteration = 0
        self.seconds = 0.0  # spent in the loop, by this process and those it resumes
        self.best: dict[str, Any] | None = None  # its iteration, and the metric that chose it as val_<name>
        self._best_state: dict[str, Any] | None = None  # kept here only when there is no folder for it
        self._best_scale: Tensor | None = None
        self._energies: dict[str, float] = {}  # at the last step that is recorded
        self._losses: list[Tensor] = []  # of the iterations since the last record

    def run(
        self,
        checkpoints: Checkpoints | None = None,
        collectors: Sequence[Collector] = (),
        should_stop: Callable[[], bool] = lambda: False,
    ) -> dict[str, float]:
        """Train from the present iteration to the last.

        Args:
            checkpoints: where the states go. collectors: where the figures go. should_stop: asked after each step.

        Returns:
            The figures of the best model, tested.

        Raises:
            Interrupted: `should_stop` said so; the state is saved.
        """
        self.checkpoints, self.collectors = checkpoints, collectors
        for collector in self.collectors:
            collector.metric, collector.unit = self.objective.primary_metric, self.dataset.unit
            collector.batch_size = self.batch_size
            collector.start(self.iteration, self.iterations)
        if self.low and not computes_bfloat16(self.device):
            self.say(
                "this CPU has no instructions for bfloat16: Trainer.precision = 'float32' is several times as fast here"
            )
        self.model.train()
        self._mark = (time.perf_counter(), self.iteration)
        self._clock = time.perf_counter()
        while self.iteration < self.iterations:
            self._step()
            for collector in self.collectors:
                collector.step(self.iteration)
            for hook in self.hooks:
                if hook.every and self.iteration % hook.every == 0:
                    hook.step(self)
            if self._records_at(self.iteration):
                self._record(self._evaluates_at(self.iteration))
            if self._asked_to_stop(should_stop) and self.iteration < self.iterations:
                self._losses = [
                    torch.tensor(loss, device=self.device) for loss in self._finite_losses()
                ]  # of whole batches
                check_solver(self.inference)
                self._save()
                raise Interrupted
        if self.best is None:  # it was lost, and the run resumed at its end; or no figure was a number
            self._validate()
        figures = self._test()
        for hook in self.hooks:
            hook.ended(self, figures)
        return figures

    def say(self, text: str) -> None:
        """Show a line for people, wherever the collectors show it."""
        for collector in self.collectors:
            collector.say(text)

    def _step(self) -> None:
        inputs, targets = next(self.batches)
        self.inference.scale_learning_rate(self.learning_rate(self.iteration, self.iterations))
        with self.autocast:
            loss = self.objective.training_loss(self._outputs(inputs), targets, inputs)
        loss.backward()
        if self.team.world_size > 1:
            self.inference.processes.average_gradients(self.team)
        if self.clip is not None:
            self.inference.processes.clip_gradients(self.clip, self.team)
        if self._records_at(self.iteration + 1):
            self._energies = self.inference.energies()
        self.inference.step()
        self._losses.append(loss.detach())
        self.iteration += 1

    def _evaluates_at(self, iteration: int) -> bool:
        return iteration % self.eval_interval == 0 or iteration == self.iterations

    def _records_at(self, iteration: int) -> bool:
        return iteration % self.log_interval == 0 or self._evaluates_at(iteration)

    def _outputs(self, inputs: Any) -> Any:
        try:
            return outputs_of(self.forward, inputs)
        except ValueError as error:
            if "more than 1 value per channel" not in str(error):  # of batch norm, whose variance would be 0
                raise
            raise BadSetting(
                "Trainer.batch_size", self.batch_size, "at least 2 for a network with batch norm"
            ) from None

    def _asked_to_stop(self, should_stop: Callable[[], bool]) -> bool:
        """Return whether to stop. Processes have to agree, which costs a synchronisation: only now and then."""
        if self.team.world_size > 1 and self.iteration % AGREE_INTERVAL:
            return False
        return self.team.any(should_stop(), self.device)

    def _record(self, evaluate_now: bool) -> None:
        losses = self._finite_losses()
        self._losses.clear()
        now, (then, iteration) = time.perf_counter(), self._mark
        values = {"loss": sum(losses) / len(losses), **self.inference.settings()}
        values |= {f"energy/{name}": value for name, value in self._energies.items()}
        values["steps_per_second"] = (self.iteration - iteration) / (now - then)
        if evaluate_now:
            check_solver(self.inference)  # the last state that is kept has to be a good one
            values |= self._validate() | self.inference.diagnostics()
            if self.per_layer:
                values |= {f"entropy/{name}": bits for name, bits in self.inference.layer_entropy().items()}
        for collector in self.collectors:
            collector.record(self.iteration, values)
        if evaluate_now:
            self._save()
        self._mark = (time.perf_counter(), self.iteration)

    def _finite_losses(self) -> list[float]:
        """Return the losses since the last record, on the host; the run ends here if one of them is not a number."""
        stacked = torch.stack(self._losses) if self._losses else torch.zeros(0)
        self.team.average([stacked])
        losses: list[float] = stacked.tolist()
        for index, loss in enumerate(losses):
            if not math.isfinite(loss):
                kept = "the last good checkpoint is kept" if self.checkpoints else "nothing was saved"
                iteration = self.iteration - len(losses) + index + 1
                raise Diverged(f"the loss became {loss} at iteration {iteration}: {kept}, try a lower learning rate")
        return losses

    def _validate(self) -> dict[str, float]:
        metric, figures, relaxed = self.objective.primary_metric, {}, None
        share = RELAXED_SHARE if self.dataset.size("val") >= LARGE else 1
        if self.inference.relaxed:
            relaxed = self._validation(share, others=False)[0][metric.name]
        with self.inference.rounded():
            part, found = self._validation(share)
            if relaxed is not None:  # the difference on a part of the examples says more than the figure there
                figures[f"relaxed_val_{metric.name}"] = relaxed + (found[metric.name] - part[metric.name])
                self._warn_of_a_gap(relaxed - part[metric.name])
            if metric.better(found[metric.name], None if self.best is None else self.best[f"val_{metric.name}"]):
                self.best = {"iteration": self.iteration, f"val_{metric.name}": found[metric.name]}
                self._best_state = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
                scale = self.inference.labelling.scale_of_runs
                self._best_scale = None if scale is None else scale.clone()
            for hook in self.hooks:
                figures |= hook.evaluated(self) or {}
        if self.best is not None and self.best["iteration"] == self.iteration and self.checkpoints:
            solution = self.inference.solution()  # in every process: each may have a part of it
            if self.team.leads:
                about = (self.dataset, self.objective, self.inference.method, self.seed)
                packing = packing_record(self.model, self.inference.labelling, *about)
                best = {**self.best, "model": self._best_state, "solution": solution, "packing": packing}
                self.checkpoints.save_best(self.iteration, best)
            self._best_state = None  # it is on the disk
        return {f"val_{name}": value for name, value in found.items()} | figures

    def _warn_of_a_gap(self, gap: float) -> None:
        """Warn, near the end, if rounding takes away what the relaxed network has learned."""
        metric, late = self.objective.primary_metric, self.iteration >= WARN_AFTER * self.iterations
        if late and metric.unit == "%" and gap > WARN_GAP and "gap" not in self.inference.warned:
            self.inference.warned.add("gap")
            warnings.warn(
                f"rounding takes {gap:.1f} points of {metric.title} from the network near its end: let beta end "
                "higher or sooner, or train longer",
                stacklevel=2,
            )

    def _test(self) -> dict[str, float]:
        """Load the best model into the network and test it."""
        self.team.any(False, self.device)  # until the leader has written it
        metric = self.objective.primary_metric
        if self.best is None:
            raise Diverged(
                f"no {metric.title} on validation was a number, so there is no best network: look for values that are "
                "not finite in the validation data, or try a lower learning rate"
            )
        if self.checkpoints:
            saved = self.checkpoints.best(self.best["iteration"], self.device)
            self._best_state, self._best_scale = saved["model"], saved["solution"]["scale"]
        assert self._best_state is not None
        self.inference.labelling.check_on_levels(self._best_state, self._best_scale)
        self.model.load_state_dict(self._best_state)
        tested = evaluate(self.model, self.dataset, "test", self.objective, self.forward, self.team)
        if not is_number(tested[metric.name]):
            raise Diverged(
                f"{metric.title} of the best network on the test data is {tested[metric.name]}, which is no number: "
                "look for values that are not finite in the test data"
            )
        figures = {f"test_{name}": value for name, value in tested.items()}
        chosen = f"val_{metric.name}"
        return {"best_iteration": self.best["iteration"], f"best_{chosen}": self.best[chosen], **figures}

    def _validation(self, share: int, others: bool = True) -> list[dict[str, float]]:
        """Return the figures on one batch in `share` of the validation split, and on all."""
        with self.autocast:
            sums = sums_of(self.model, self.dataset, "val", self.objective, self.forward, self.team, share, others)
        return [self.objective.figures(s) for s in sums]

    def _save(self) -> None:
        now = time.perf_counter()
        self.seconds, self._clock = self.seconds + now - self._clock, now
        if self.checkpoints:
            state = self.state_dict()  # in every process: each may have a part of it
            best = None if self.best is None else self.best["iteration"]
            if self.team.leads:
                self.checkpoints.save(self.iteration, state, best)

    def state_dict(self) -> dict[str, Any]:
        """Return everything the loop needs to go on as if it had never stopped."""
        labelling = self.inference.labelling
        solved = {*labelling.labelled.spans, *labelling.free.spans}  # these are in the solver's own state
        return {
            "iteration": self.iteration,
            "seconds": self.seconds,
            "best": self.best,
            "losses": [loss.item() for loss in self._losses],
            "batches": self.batches.state_dict(),
            "objective": self.objective.state_dict(),
            "inference": self.inference.state_dict(),
            "model": {n: t for n, t in self.model.state_dict().items() if n not in solved},
            "rng": torch.get_rng_state(),
            "cuda_rng": torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state saved by a trainer of the same configuration."""
        self.iteration, self.seconds, self.best = state["iteration"], state["seconds"], state["best"]
        if self.best is not None:
            self.best[f"val_{self.objective.primary_metric.name}"] += 0.0  # it is there, and a number
        self._losses = [torch.tensor(float(loss), device=self.device) for loss in state["losses"]]
        self.batches.load_state_dict(state["batches"])
        self.objective.load_state_dict(state["objective"])
        self.inference.load_state_dict(state["inference"])
        self.model.load_state_dict(state["model"], strict=False)
        torch.set_rng_state(state["rng"])
        if self.device.type == "cuda" and state["cuda_rng"] is not None:
            torch.cuda.set_rng_state(state["cuda_rng"], self.device)  # processes started from one seed
