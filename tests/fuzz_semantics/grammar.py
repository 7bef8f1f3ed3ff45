"""Random programs, as users write them: models, optimizers, loaders, loops, and statements in between."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from tests.fuzz_semantics import phrases
from tests.fuzz_semantics.program import Program, Statement

__all__ = ["random_program"]


def random_program(seed: int, nodes: int = 1) -> Program:
    """Return the program of a seed; equal seeds give equal programs.

    On two nodes, programs only contain phrases that are linear in the gradients of a batch, because each node
    has half of the batch.
    """
    return Writer(random.Random(seed), nodes).program(seed)


class Writer:
    """Writes one program.

    Parameters
    ----------
    rng : random.Random
        Source of all choices.
    nodes : int
        Number of nodes.
    """

    def __init__(self, rng: random.Random, nodes: int) -> None:
        self.rng = rng
        self.nodes = nodes
        self.statements: list[Statement] = []
        self.tables: dict[str, str] = {}
        """Source of each table's parameter by the table's name, such as ``a.weight``."""
        self.sparse: set[str] = set()
        self.named: list[str] = []
        self.reads_all = False

    def program(self, seed: int) -> Program:
        self.write_model()
        self.add("data", "inputs, targets = torch.randint(0, 10, (16, 4)), torch.rand(16, 1)")
        self.write_optimizers()
        for section, kinds, most in (
            ("made", (phrases.WRITES, phrases.TYING), 2),
            ("before", (phrases.HOOKS, phrases.FREEZING, phrases.PENDING, phrases.SCHEDULERS), 2),
            ("after", (phrases.HOOKS, phrases.WRITES, phrases.FREEZING, phrases.LOADING, phrases.LOOKING), 2),
        ):
            for _ in range(self.up_to(most)):
                self.add(section, self.phrase(self.rng.choice(kinds)))
        if self.chance(0.2):
            self.add("before", phrases.WARM_UP)
        self.write_loop()
        for _ in range(self.up_to(2)):
            self.add(
                "between", self.phrase(self.rng.choice((phrases.EVALUATION, phrases.COPIES, phrases.WRITES)))
            )
        self.write_end()
        loader, iterate = self.choose(phrases.LOADERS), self.pick(phrases.ITERATIONS, 0.7)
        while self.sparse and "Refill" in loader:  # PyTorch's sparse gradients share memory with the batch
            loader = self.choose(phrases.LOADERS)
        self.add("loader", loader)
        if any(phrases.TRANSPOSES.search(one.text) for one in self.statements):
            # PyTorch's fused kernels do not see that a gradient and its parameter have other strides.
            self.statements = [
                one._replace(text=one.text.replace(", fused=True", "")) for one in self.statements
            ]
        once = "stream()" in loader
        lookahead = self.rng.choice((None, "auto", 0, 1, 2, 2))
        epochs = 1 if once else self.rng.choice((1, 1, 2))
        return Program(
            seed, tuple(self.statements), iterate, epochs, lookahead, tuple(self.named), self.nodes
        )

    def add(self, section: str, text: str, defines: str = "") -> None:
        if text:
            self.statements.append(Statement(section, text, defines))

    def write_model(self) -> None:
        for name in "abc"[: self.rng.choice((1, 1, 2, 2, 3))]:
            kind = self.rng.choice(("Embedding",) * 4 + ("EmbeddingBag", "Parameter"))
            reads: Sequence[str]
            if kind == "Parameter":
                self.add("init", f"self.{name} = nn.Parameter(torch.randn(10, 3))", name)
                self.tables[name] = name
                if self.chance(0.7):
                    self.named.append(name)
                reads = phrases.PARAMETER_READS
            else:
                options = [
                    one
                    for one in phrases.for_nodes(phrases.TABLE_OPTIONS[kind], self.nodes)
                    if self.chance(0.2)
                ]
                if any("sparse" in one for one in options):
                    self.sparse.add(name)
                    options = [one for one in options if "scale_grad" not in one]
                self.add("init", f"self.{name} = nn.{kind}(10, 3{''.join(options)})", name)
                self.tables[name] = f"{name}.weight"
                reads = phrases.EMBEDDING_READS if kind == "Embedding" else phrases.BAG_READS
            for _ in range(self.rng.choice((1, 1, 1, 2))):
                self.add("forward", self.fill(self.choose(reads), name))
            if name not in self.sparse:
                for _ in range(self.up_to(2)):
                    self.add("forward", self.fill(self.choose(phrases.WEIGHT_READS), name))
        for layer, use in self.rng.sample(phrases.LAYERS, self.up_to(2)):
            if self.nodes > 1 and phrases.BATCHWISE.search(layer + use):
                continue
            if layer:
                self.add("init", layer, layer.split("=")[0].strip().removeprefix("self."))
            self.add("forward", use)
        self.shuffle("forward")

    def shuffle(self, section: str) -> None:
        chosen = [one for one in self.statements if one.section == section]
        self.rng.shuffle(chosen)
        self.statements = [one for one in self.statements if one.section != section] + chosen

    def write_optimizers(self) -> None:
        weights = [f"net.{source}" for source in self.tables.values()]
        shape = self.rng.random()
        if shape < 0.5:
            self.optimizer("optimizer", "net.parameters()", self.rule(bool(self.sparse), tables=True))
        elif shape < 0.65:
            dense = "{'params': [net.out.weight, net.out.bias], 'lr': 0.02}"
            groups = f"[{{'params': [{', '.join(weights)}]}}, {dense}]"
            self.optimizer("optimizer", groups, self.rule(bool(self.sparse), tables=True))
        elif shape < 0.75:
            self.write_gradual_unfreezing()
        else:
            mine = f"[{', '.join(weights)}]"
            names = tuple(sorted(self.tables))
            rest = f"[p for n, p in net.named_parameters() if n.split('.')[0] not in {names}]"
            if self.sparse and self.sparse == set(self.tables) and self.nodes == 1 and self.chance(0.6):
                rule = "SparseAdam({}, lr=0.05)"
            else:
                rule = self.rule(bool(self.sparse), tables=True)
            self.optimizer("optimizer", mine, rule)
            if self.chance(0.95):
                self.optimizer("other", rest, self.rule(False, tables=False))

    def write_gradual_unfreezing(self) -> None:
        """An optimizer without one of the parameters, which is added in the middle of the training."""
        late = self.rng.choice([*self.tables.values(), "out.bias"])
        first = f"[p for p in net.parameters() if p is not net.{late}]"
        rule = self.rule(bool(self.sparse), tables=True)
        if (
            "Adagrad" in rule
        ):  # PyTorch's has no state of parameters that are added, and fails at their first step
            rule = "SGD({}, lr=0.1)"
        self.optimizer("optimizer", first, rule)
        if self.chance(0.5):
            self.add("before", f"net.{late}.requires_grad_(False)")
        added = f"optimizer.add_param_group({{'params': [net.{late}], 'lr': 0.05}})"
        lines = f"    net.{late}.requires_grad_(True)\n    {added}"
        self.add("bottom", f"if epoch == 0 and step == {self.rng.randrange(3)}:\n{lines}")

    def rule(self, sparse: bool, tables: bool) -> str:
        if self.nodes > 1:
            return self.rng.choice(phrases.SUMMED_RULES)
        if sparse:
            return self.rng.choice(phrases.SPARSE_RULES)
        if not tables:
            return self.rng.choice((*phrases.RULES, *phrases.RARE_RULES, *phrases.DENSE_RULES))
        if self.chance(0.03):
            return self.rng.choice(phrases.RARE_RULES)
        if self.chance(0.1):
            for name in self.tables:
                self.add("forward", f"h = h + self.{self.tables[name]}.mean(0)")
            return self.rng.choice(phrases.MOMENT_RULES)
        return self.rng.choice(phrases.RULES)

    def optimizer(self, name: str, parameters: str, rule: str) -> None:
        self.add("optimizers", f"{name} = torch.optim.{rule.format(parameters)}", name)

    def write_loop(self) -> None:
        optimizers = [one.defines for one in self.statements if one.section == "optimizers"]
        zero = "; ".join(f"{one}.zero_grad()" for one in optimizers)
        step = "; ".join(f"{one}.step({'lambda: loss' * self.chance(0.01)})" for one in optimizers)
        how = self.rng.random()
        if how < 0.4:
            zero_at = "top"
        elif how < 0.6:
            zero_at = "loss"
        elif how < 0.85:
            zero_at = "bottom"
        else:
            zero_at = ""
        if zero_at:
            self.add(zero_at, self.pick([zero, *(one.format(zero=zero) for one in phrases.ZEROING)], 0.75))
        for _ in range(self.up_to(1)):
            self.add("top", self.fill(self.rng.choice(phrases.RANDOM_INPUTS), self.any_table()))
        for _ in range(self.up_to(1)):
            self.add("loss", self.fill(self.choose(phrases.LOSS_TERMS), self.any_table()))
        self.add("loss", self.pick(phrases.BACKWARD, 0.7))
        for _ in range(self.up_to(2)):
            self.add("update", self.phrase(phrases.GRADIENT_EDITS))
        self.add("update", self.pick([step, *(one.format(step=step) for one in phrases.STEPPING)], 0.75))
        self.add("bottom", "see(loss)")
        for _ in range(self.up_to(3)):
            kind = self.rng.choice(phrases.AFTER_STEP)
            self.add("bottom", self.guarded(self.phrase(kind)))
        if self.chance(0.1):
            self.add("bottom", "if step == 1:\n    break")

    def guarded(self, text: str) -> str:
        """The statement in each step, or in one step only."""
        if not text or self.chance(0.3):
            return text
        lines = "\n".join("    " + line for line in text.splitlines())
        return f"if step == {self.rng.randrange(4)}:\n{lines}"

    def write_end(self) -> None:
        for _ in range(self.up_to(1)):
            self.add(
                "end", self.phrase(self.rng.choice((phrases.COPIES, phrases.EVALUATION, phrases.LOADING)))
            )
        self.add("end", "see({'gradients': [p.grad for p in net.parameters()]})")
        self.add("end", "see({'weights': model.state_dict()})")
        self.add("end", "see({'random numbers': [random.random(), np.random.rand(), torch.rand(1)]})")
        for one in list(self.statements):
            if one.section == "optimizers":
                self.add("end", f"see({{'optimizer': {one.defines}.state_dict()}})")

    def phrase(self, choices: Sequence[str]) -> str:
        return self.fill(self.choose(choices), self.any_table())

    def fill(self, text: str, table: str) -> str:
        """Put a table's parameter, rows and numbers into a phrase."""
        source = self.tables[table]
        rng = self.rng
        other = self.tables[self.any_table()]
        values: dict[str, Callable[[], str]] = {
            "{t}": lambda: table,
            "{w}": lambda: f"self.{source}",
            "{W}": lambda: f"{rng.choice(('net', 'net', 'model'))}.{source}",
            "{V}": lambda: f"net.{other}",
            "{D}": lambda: "net.out.weight",
            "{o}": lambda: f"net.{source}" if source == table else f"net.{table}.weight",
            "{r}": lambda: str(rng.randrange(10)),
            "{x}": lambda: rng.choice(("0.5", "0.9", "0.1", "2.0")),
        }
        for place, value in values.items():
            if place in text:
                text = text.replace(place, value())
        return text

    def any_table(self) -> str:
        return self.rng.choice(list(self.tables))

    def choose(self, choices: Sequence[str]) -> str:
        return self.rng.choice(phrases.for_nodes(choices, self.nodes))

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def up_to(self, most: int) -> int:
        return self.rng.choice(range(most + 1))

    def pick(self, choices: Sequence[str], first: float) -> str:
        """The first choice with a probability, or one of the others."""
        return choices[0] if self.chance(first) else self.choose(tuple(choices[1:]))
