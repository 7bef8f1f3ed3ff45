"""The wrapped model: `AdaModel`, its parameters, calls, node, state dictionary and checkpoints."""
