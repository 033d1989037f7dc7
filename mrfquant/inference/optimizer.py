"""The interface of torch.optim.Optimizer for solvers: schedulers, gradient scalers and training frameworks use it."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from mrfquant.config.settings import built
from mrfquant.errors import BadInput
from mrfquant.inference.groups import OptimizerGroups
from mrfquant.inference.learned_scales import LearnedScales
from mrfquant.inference.optimizer_states import check_groups, check_tensors
from mrfquant.inference.optimizers import ChainedOptimizer
from mrfquant.inference.views import OptimizerView, flat_views, matrix_views
from mrfquant.kernels.fused import Rule
from mrfquant.labelling import Block, Labelling

Loss = TypeVar("Loss")
OptimizerRecipe = Callable[[list[Any]], torch.optim.Optimizer]
BY_WEIGHT = [
    *(torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad, torch.optim.Adadelta),
    *(torch.optim.Adamax, torch.optim.NAdam, torch.optim.RAdam, torch.optim.RMSprop, torch.optim.Rprop),
]  # optimizers for which a weight is a weight, whatever tensor it lies in
UNKNOWN_SETTINGS = ("amsgrad", "maximize", "nesterov", "capturable", "differentiable")  # to fused steps


class SolverOptimizer(torch.optim.Optimizer, ABC):
    """A `torch.optim.Optimizer` over a network's parameters that steps by moving a solver's variables.

    `param_groups` has the network's own parameters, so that their gradients can be clipped or unscaled, and the
    settings of the optimizer that drives the variables, so that schedulers can change them: what they set is pushed to
    it at each step. That inner optimizer cannot be stepped by itself. Its last group is that of learned scales.

    Weight decay pulls on the variables: auxiliary ones go towards undecided labels, latent weights towards their zero.
    `groups={"labelled": {"weight_decay": 0.0}}` keeps it to the free parameters.

    Attributes:
        driver: the inner optimizer, of the variables of the blocks, in their order, then the free parameters.
        learned_scales: what the optimizer moves of the labelling's scales, or None.
    """

    labelling: Labelling
    learned_scales: LearnedScales | None

    def drive(self, variables: list[Tensor], recipe: OptimizerRecipe, groups: OptimizerGroups) -> None:
        """Build the inner optimizer: the last thing that a solver's constructor does before it writes weights."""
        labelling, apart = self.labelling, bool(getattr(recipe, "by_shape", False))
        if apart and labelling.sharded:
            raise BadInput("ByShape drives whole matrices, shard cuts them: take one of the two")
        views = (matrix_views if apart else flat_views)(labelling, variables)
        self.driver = _built(recipe, _as_groups(views, groups))
        chain = self.driver.parts if isinstance(self.driver, ChainedOptimizer) else (self.driver,)
        groups.check({name for part in chain for name in part.defaults})
        if labelling.sharded and type(self.driver) not in BY_WEIGHT:
            raise BadInput(
                f"shard needs an optimizer that treats each weight by itself, {type(self.driver).__name__} may not: "
                f"take one of {', '.join(c.__name__ for c in BY_WEIGHT)}"
            )
        if len(chain) > 1 and not apart:
            raise BadInput("ByShape has to know that it drives a solver: hand it over itself, not within a function")
        if self.learned_scales is not None:  # a group of their own: decay would draw scales to 1
            self.driver.add_param_group({"params": [self.learned_scales.log]})
            if "weight_decay" in (last := self.driver.param_groups[-1]):
                last["weight_decay"] = 0.0
            last.update(groups.of_scales)
        # Its groups hold the tensors; ours hold, in their places, the parameters that these stand for.
        place = {id(view.tensor): view.parameters for view in views}
        ours = [
            {**group, "params": _unique(p for tensor in group["params"] for p in place.get(id(tensor), ()))}
            for group in self.driver.param_groups
        ]
        self._complete = False
        self._all_views, self._views = views, [view for view in views if view.tensor is not view.base]
        torch.optim.Optimizer.__init__(self, ours, {})  # the groups have all settings already
        self.defaults = dict(self.driver.defaults)
        self._complete = True
        self._initial_rates = [group["lr"] for group in self.param_groups]
        self._guard()

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """Refused: gradients that are clipped there, or rates that are scheduled there, would have no effect."""
        raise AttributeError(
            "a solver has no `optimizer`, it is one: clip by solver.param_groups, give the solver itself to a scheduler"
        )

    @abstractmethod
    def take_step(self) -> None:
        """Update once from the gradient that backward has left, and clear it."""

    def step(self, closure: Callable[[], Loss] | None = None) -> Loss | None:  # type: ignore[override]
        """Update once from the gradient that backward has left, or that `closure` makes, and clear it.

        Args:
            closure: computes the loss and calls backward.

        Returns:
            What the closure returns.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            self.take_step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear what backward has accumulated; it stays in its place, whatever `set_to_none` says."""
        self.labelling.zero_gradient()

    def scale_learning_rate(self, factor: float) -> None:
        """Set every learning rate to `factor` times what the optimizer was made with."""
        for group, rate in zip(self.param_groups, self._initial_rates, strict=True):
            group["lr"] = rate * factor

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused once the solver is built: which parameters it has is the labelling's to say."""
        if getattr(self, "_complete", False):
            raise BadInput("a solver's parameters are those of its labelling: build both anew to add some")
        super().add_param_group(param_group)

    def push_hyperparameters(self) -> None:
        """Give the inner optimizer the settings that `param_groups` has now."""
        for ours, inner in zip(self.param_groups, self.driver.param_groups, strict=True):
            tensors = inner["params"]
            inner.update(ours)
            inner["params"] = tensors

    def move_variables(self) -> None:
        """Step the inner optimizer."""
        for view in self._views:
            view.tensor.grad = None if view.base.grad is None else view.slice(view.base.grad)
        type(self.driver).step(self.driver)
        for view in self._views:
            view.tensor.grad = None
        self._pull_hyperparameters()

    def fused_rule(self, x: Tensor) -> Rule | None:
        """Return the rule by which the inner optimizer moves x; None if it is not one of those known.

        Its settings and state stay where they are: either way can go on from the other's state, with the same results.
        """
        if type(self.driver) not in (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD):
            return None
        for group in self.driver.param_groups:
            for tensor in group["params"]:
                if tensor is x and group["fused"] and not isinstance(group["lr"], Tensor):
                    for name in UNKNOWN_SETTINGS:
                        if group.get(name):
                            return None
                    rule = _sgd if isinstance(self.driver, torch.optim.SGD) else _adam
                    return rule(group, self.driver.state[x], x)
        return None

    def learning_rate(self, block: Block) -> float:
        """Return the learning rate of a block's variables."""
        own = {id(self.labelling.labelled.parameter(name)) for name in self.labelling.names_in(block)}
        rates = {group["lr"] for group in self.param_groups if any(id(p) in own for p in group["params"])}
        if len(rates) > 1:
            raise BadInput(
                f"{type(self).__name__} needs one learning rate for each level set: ByShape has {sorted(rates)}"
            )
        return rates.pop()

    def inner_state(self) -> dict[str, Any]:
        """Return the inner optimizer's state as one process alone would have it; whole with the leader only.

        Its settings are the present ones: a scheduler may have stepped since it moved the variables.
        """
        self.push_hyperparameters()
        state = self.driver.state_dict()
        return self._map_state(state, OptimizerView.joined) if self.labelling.sharded else state

    def load_inner_state(self, state: dict[str, Any]) -> None:
        """Load the inner optimizer's state, and take its settings over."""
        before = [dict(group) for group in self.driver.param_groups]
        try:
            self.driver.load_state_dict(self._map_state(state, OptimizerView.cut) if self.labelling.sharded else state)
            check_groups(self.driver, before)
            if type(self.driver) in BY_WEIGHT:
                check_tensors(self.driver)
        except BadInput:
            raise
        except (LookupError, ValueError, TypeError, AttributeError, RuntimeError, AssertionError):
            raise BadInput("the saved state does not fit: it is of another optimizer, or of other groups") from None
        self._pull_hyperparameters()
        self._guard()

    def _map_state(self, state: dict[str, Any], change: Callable[[OptimizerView, Tensor], Tensor]) -> dict[str, Any]:
        """Return an optimizer's state with every tensor changed that belongs to a view."""
        tensors = [tensor for group in self.driver.param_groups for tensor in group["params"]]
        found = {}
        for number, values in state["state"].items():
            # None for learned scales, which every process has.
            view = next((view for view in self._all_views if view.tensor is tensors[number]), None)
            found[number] = {n: change(view, v) if view and isinstance(v, Tensor) else v for n, v in values.items()}
        return {**state, "state": found}

    def _pull_hyperparameters(self) -> None:
        """Take the settings of the inner optimizer's groups, some of which count steps there."""
        for ours, inner in zip(self.param_groups, self.driver.param_groups, strict=True):
            ours.update((name, value) for name, value in inner.items() if name != "params")

    def _guard(self) -> None:
        self.driver.step = _refuse  # type: ignore[method-assign, assignment]

    # torch's own keep three attributes only.
    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__.copy()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._patch_step_function()
        self._guard()


def _refuse(closure: Callable[[], float] | None = None) -> None:
    """Replace the inner optimizer's step and refuse to be called."""
    raise BadInput("this optimizer drives a solver's variables and trains nothing by itself: call solver.step()")


def _adam(group: dict[str, Any], state: dict[str, Any], x: Tensor) -> Rule | None:
    beta1, beta2 = group["betas"]
    if 1 - beta1 >= 0.5:  # torch averages in another way then
        return None
    if not state:
        state["step"] = torch.zeros((), dtype=torch.float32, device=x.device)
        state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(x), torch.zeros_like(x)
    rate, decay = group["lr"], group["weight_decay"]
    added, kept = (0.0, 1 - rate * decay) if group.get("decoupled_weight_decay") else (decay, 1.0)
    settings = (added, kept, beta1, beta2, group["eps"], rate)
    return Rule("adam", settings, (state["exp_avg"], state["exp_avg_sq"]), state["step"])


def _sgd(group: dict[str, Any], state: dict[str, Any], x: Tensor) -> Rule:
    momentum, share = group["momentum"], 1 - group["dampening"]
    if momentum and state.get("momentum_buffer") is None:
        state["momentum_buffer"], share = torch.zeros_like(x), 1.0  # the first gradient as it is
    settings = (group["weight_decay"], momentum, share, group["lr"])
    return Rule("sgd", settings, (state["momentum_buffer"],) if momentum else ())


def _built(recipe: OptimizerRecipe, tensors: list[Any]) -> torch.optim.Optimizer:
    """Build an optimizer, with torch's complaints about its settings as ours."""
    name = getattr(recipe, "__name__", type(recipe).__name__)
    try:
        made = recipe(tensors)
    except BadInput:
        raise
    except (ValueError, TypeError, RuntimeError, LookupError) as error:
        message = str(error).split("\n")[0]
        raise BadInput(f"the optimizer {name} cannot be built: {message}", binding=name) from None
    found = built("Experiment.optimizer", made, torch.optim.Optimizer, "an optimizer, as @Adam")
    closure = inspect.signature(type(found).step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        raise BadInput(f"the optimizer {name} needs a closure in its steps, which no solver has: take another")
    return found


def _as_groups(views: list[OptimizerView], groups: OptimizerGroups) -> list[Any]:
    """Return what the recipe gets: the tensors, or groups of them with their settings."""
    if groups.of_parameter is None:
        return [view.tensor for view in views]
    return [
        {**settings, "params": [view.tensor for view in views if view.group == number]}
        for number, settings in enumerate(groups.settings)
    ]


def _unique(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    """Return each of them once, at its first place."""
    return list({id(p): p for p in parameters}.values())
