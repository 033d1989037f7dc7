"""Run toulbar2 on one field, in a process of its own: python toulbar2_process.py FIELD.npz.

The file has arrays cards, upper (the cost of a labelling that is known already, or inf), groups (a number) and, for
each group i, scopes_i (F, k) and costs_i (F or 1, entries): whole numbers of at least 0 as float64, inf for what is
forbidden. The signal SIGVTALRM ends the search. It prints a line of JSON: labels below `upper`, or null, and a bound.
"""

import json
import sys

import numpy as np

LONGEST = 10**6  # seconds


def main(path: str) -> None:
    """Solve and print."""
    from pytoulbar2 import CFN

    given = np.load(path)
    upper = float(given["upper"])
    network = CFN(ubinit=upper if np.isfinite(upper) else None, resolution=0, verbose=-1)
    for v, count in enumerate(given["cards"].tolist()):
        network.AddVariable(f"x{v}", range(count))
    for i in range(int(given["groups"])):
        costs = given[f"costs_{i}"]
        for f, scope in enumerate(given[f"scopes_{i}"].tolist()):
            network.AddFunction(scope, costs[f if len(costs) > 1 else 0].tolist())
    network.CFN.timer(LONGEST)  # its handler of the signal
    found = network.Solve()
    bound = network.GetDDualBound() if network.Option.limited else found[1] if found else upper
    print(json.dumps({"labels": found and list(found[0]), "bound": bound}))


if __name__ == "__main__":
    main(sys.argv[1])
