"""Shared by the tests of floating-point operations: those of a traced program."""

import math


def products(jaxpr):
    """Return the operations of the matrix products of a program: 2 per multiply-add, loops counted by their trips."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            total += 2 * equation.outvars[0].aval.size * math.prod(left[axis] for axis in contracted)
        times = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        for value in equation.params.values():
            if inner := getattr(value, "jaxpr", value if hasattr(value, "eqns") else None):
                total += times * products(inner)
    return total
