"""Phrases of the grammar.

``{w}`` is a table's parameter inside of the model, ``{W}`` outside, ``{t}`` the table's attribute, ``{o}`` its
module, ``{V}`` the parameter of any table, ``{D}`` a dense parameter, ``{r}`` a row and ``{x}`` a factor.
"""

# ruff: noqa: E501 (a line of a program is easier to read on one line)

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

BATCHWISE = re.compile(
    r"clip_|clamp|ids\.unique|ids\[0|[dD]ropout|BatchNorm|count|torch\.rand|len\(ids\)|GradScaler|grad\.norm|grad\.abs"
    r"|max_norm|scale_grad|loss\.item\(\) >|indices\(\)|batch_size=5|BatchSampler|see\(model\(ids|grad\[ids|data\[ids\]|grad is None for|add_\(\{W\}\.grad"
)
"""Phrases with an effect that the halves of a batch do not add up to, or that read the batch itself."""

TRANSPOSES = re.compile(r"mix\.weight\S*\.t_?\(\)")
"""Phrases after which a dense parameter has other strides than its gradient."""


@functools.cache
def for_nodes(choices: Sequence[str], nodes: int) -> Sequence[str]:
    """Choices that mean the same on each of several nodes."""
    return choices if nodes == 1 else tuple(one for one in choices if not BATCHWISE.search(one))


TABLE_OPTIONS = {
    "Embedding": (", padding_idx=0", ", max_norm=1.0", ", scale_grad_by_freq=True", ", sparse=True"),
    "EmbeddingBag": (", mode='sum'", ", padding_idx=0", ", max_norm=1.0", ", sparse=True"),
}

EMBEDDING_READS = (
    "h = h + self.{t}(ids).sum(1)",
    "h = h + self.{t}(ids).mean(1)",
    "h = h + self.{t}(ids).amax(1)",
    "h = h + self.{t}(ids[:, 0]) * self.{t}(ids[:, 1])",
    "h = h + F.embedding(ids, {w}).sum(1)",
    "h = h + F.embedding(ids, {w}, padding_idx={r}).sum(1)",
    "h = h + self.{t}(torch.randint(0, 10, (len(ids),)))",
    "h = h + self.{t}(ids.unique()).mean(0)",
)
PARAMETER_READS = (
    "h = h + {w}[ids].sum(1)",
    "h = h + F.embedding(ids, {w}).sum(1)",
    "h = h + {w}.index_select(0, ids[:, 0])",
    "h = h + {w}[ids[:, 1]] * {w}[ids[:, 2]]",
)
BAG_READS = (
    "h = h + self.{t}(ids)",
    "h = h + self.{t}(ids.flatten(), torch.arange(0, ids.numel(), 4))",
    "h = h + F.embedding_bag(ids, {w}, mode='sum')",
    "h = h + F.embedding_bag(ids, {w}, mode='max')",
    "h = h + F.embedding_bag(ids, {w}, per_sample_weights=torch.ones(ids.shape) * 0.5, mode='sum')",
)
WEIGHT_READS = (
    "h = h + {w}[ids].mean(1)",
    "h = h + {w}[ids[:, 0]]",
    "h = h + {w}[ids[:, 0], 1:2]",
    "h = h + {w}[ids].detach().sum(1)",
    "h = h + {w}.index_select(0, ids.flatten()).view(*ids.shape, 3).sum(1)",
    "h = h + torch.index_select({w}, 0, ids[:, 2])",
    "h = h + {w}.gather(0, ids[:, :3])",
    "h = h + torch.take_along_dim({w}, ids[:, :3], 0)",
    "h = h + F.linear(h, {w}).logsumexp(1, keepdim=True) * 0.1",
    "h = h + (h @ {w}.t()).softmax(1) @ {w}",
    "h = h + torch.cdist(h, {w}).mean(1, keepdim=True) * 0.1",
    "h = h + {w}[{r}]",
    "h = h + {w}[1:4].mean(0)",
    "h = h + {w}[:, 0].sum()",
    "h = h + {w}[-1] * 0.5",
    "h = h + {w}.data[ids[:, 1]]",
    "h = h + {w}.narrow(0, 2, 2).sum(0)",
    "h = h + {w}.unbind()[{r}]",
    "h = h + {w}[ids[0, 0]]",
    "h = h + {w}[ids[:, 0] > 4, :].sum() if len(ids) == 10 else h + {w}[ids[:, 0] % 2].sum()",
    "h = h + ({w} * 2)[ids].sum(1)",
    "h = h + F.normalize({w}, dim=1)[ids].sum(1)",
    "h = h + torch.cat([{w}, {w}])[ids].sum(1)",
    "h = h + torch.einsum('bd,rd->bd', h, {w}) * 0.1",
    "h = h + {w}.mean(0) * 0.1",
    "h = h + F.dropout({w}, 0.3, self.training)[ids].sum(1)",
    "h = h + {w}.to(torch.float64)[ids].sum(1).float()",
    "h = h + {w}.clone()[ids].sum(1)",
    "h = h + F.one_hot(ids, 10).float().sum(1) @ {w}",
    "h = h + torch.utils.checkpoint.checkpoint(lambda i: {w}[i].sum(1), ids, use_reentrant=False)",
    "with torch.no_grad():\n    h = h + F.embedding(ids, {w}).sum(1)",
)

LAYERS = (
    ("self.norm = nn.LayerNorm(3)", "h = self.norm(h)"),
    ("self.drop = nn.Dropout(0.3)", "h = self.drop(h)"),
    ("self.mix = nn.Linear(3, 3)", "h = torch.tanh(self.mix(h))"),
    ("self.batchnorm = nn.BatchNorm1d(3)", "h = self.batchnorm(h)"),
    ("self.scale = nn.Parameter(torch.ones(3))", "h = h * self.scale"),
    ("self.register_buffer('count', torch.zeros(1))", "self.count += len(ids)"),
    ("", "h = F.dropout(h, 0.2, self.training)"),
    ("", "h = h + torch.rand(()) * 0.1"),
    ("", "h = h * random.random()"),
    ("", "h = h + np.random.rand()"),
)

RULES = (
    "SGD({}, lr=0.1)",
    "SGD({}, lr=0.1)",
    "SGD({}, lr=0.1, momentum=0.9)",
    "SGD({}, lr=0.1, momentum=0.9, nesterov=True)",
    "SGD({}, lr=0.1, weight_decay=0.01)",
    "SGD({}, lr=0.1, momentum=0.9, weight_decay=0.01)",
    "Adagrad({}, lr=0.1)",
    "Adagrad({}, lr=0.1, initial_accumulator_value=0.5)",
    "Adagrad({}, lr=0.1, weight_decay=0.01, initial_accumulator_value=0.1)",
    "RMSprop({}, lr=0.01, eps=1e-3)",
    "RMSprop({}, lr=0.01, eps=1e-3, alpha=0.5)",
    "SGD({}, lr=0.1, fused=True)",
)
RARE_RULES = (
    "SGD({}, lr=0.1, momentum=0.9, dampening=0.5)",
    "SGD({}, lr=0.1, maximize=True)",
    "Adagrad({}, lr=0.1, lr_decay=0.1, initial_accumulator_value=0.1)",
    "RMSprop({}, lr=0.01, eps=1e-3, momentum=0.5)",
    "RMSprop({}, lr=0.01, eps=1e-3, weight_decay=0.01)",
    "RMSprop({}, lr=0.01, eps=1e-3, centered=True)",
    "Adadelta({}, lr=0.1)",
    "NAdam({}, lr=0.01)",
)
SUMMED_RULES = ("SGD({}, lr=0.1)", "SGD({}, lr=0.05)")
"""Rules for which the steps of two nodes add up to one step."""
SPARSE_RULES = (
    "SGD({}, lr=0.1)",
    "SGD({}, lr=0.1, momentum=0.9)",
    "Adagrad({}, lr=0.1)",
    "Adagrad({}, lr=0.1, initial_accumulator_value=0.5)",
)
MOMENT_RULES = ("Adam({}, lr=0.01)", "AdamW({}, lr=0.01)", "Adam({}, lr=0.01, betas=(0.5, 0.9))")
DENSE_RULES = (
    *MOMENT_RULES,
    "Adam({}, lr=0.01, weight_decay=0.01)",
    "Adam({}, lr=0.01, amsgrad=True)",
    "NAdam({}, lr=0.01)",
    "Adadelta({}, lr=0.1)",
    "Adamax({}, lr=0.01)",
)

WRITES = (
    "{W}.data[{r}].zero_()",
    "{W}.data[3:6].fill_(0.1)",
    "{W}.data[{r}] = 0.5",
    "{W}.data[{r}] = {W}.data[{r}].clone()",
    "{W}.data[[1, 2]] = {W}.data[[2, 1]]",
    "{W}.data[:, 1] = 0",
    "{W}.data[{r}] += 1",
    "{W}.data[{r}, 2] *= 2",
    "{W}.data *= 0.5",
    "{W}.data.mul_({x})",
    "{W}.data.copy_(torch.linspace(-1, 1, 30).view(10, 3))",
    "{W}.data = torch.linspace(-1, 1, 30).view(10, 3)",
    "{W}.data.uniform_(-1, 1)",
    "{W}.data.clamp_(-0.5, 0.5)",
    "{W}.data.renorm_(2, 0, 1.0)",
    "{W}.data.div_({W}.data.norm(dim=1, keepdim=True))",
    "{W}.data.masked_fill_(torch.arange(10).view(10, 1) % 3 == 0, 0.2)",
    "{W}.data[torch.arange(10) % 3 == 0] = 0.2",
    "{W}.data.view(-1)[:4].fill_(1)",
    "{W}.data.t()[0].zero_()",
    "{W}.data.index_fill_(0, torch.tensor([1, 4]), 0.3)",
    "{W}.data.index_add_(0, torch.tensor([1, 4, 1]), torch.ones(3, 3) * 0.1)",
    "{W}.data.index_copy_(0, torch.tensor([5, 2]), torch.ones(2, 3) * 0.1)",
    "{W}.data.scatter_(0, torch.tensor([[0, 1, 2]]), 0.7)",
    "{W}.data.lerp_(torch.ones(10, 3), 0.1)",
    "{W}.data.add_({V}.data, alpha=0.1)",
    "{W}.data[2:4] = {V}.data[5:7]",
    "{W}.data.numpy()[{r}] = 1",
    "{W}.detach()[{r}].zero_()",
    "{W}.detach().numpy()[:, 0] = 0.5",
    "rows = {W}.data[4:8]\nrows[1:3] *= {x}\nsee(rows)",
    "nn.init.zeros_({W}[{r}])",
    "nn.init.normal_({W})",
    "nn.init.xavier_uniform_({W})",
    "nn.init.constant_({W}[2:5], 0.3)",
    "{o}.reset_parameters() if hasattr({o}, 'reset_parameters') else None",
    "net.apply(lambda m: nn.init.uniform_(m.weight, -0.5, 0.5) if hasattr(m, 'weight') else None)",
    "with torch.no_grad():\n    {W}[{r}] = 0.25",
    "with torch.no_grad():\n    {W}[{r}].fill_(0.25)",
    "with torch.no_grad():\n    {W}.copy_({V} * {x})",
    "with torch.no_grad():\n    {W}.mul_({x})",
    "with torch.no_grad():\n    {W} *= {x}",
    "with torch.no_grad():\n    {W}.index_put_((torch.tensor([1, 3]),), torch.tensor(0.4))",
    "with torch.no_grad():\n    {W}.narrow(0, 2, 2).mul_(0)",
    "with torch.no_grad():\n    {W}.unbind()[4].zero_()",
    "with torch.no_grad():\n    {W}.select(1, 0).fill_(0.3)",
    "with torch.no_grad():\n    {W}.view(-1)[3:7] = 1",
    "with torch.no_grad():\n    {W}.split(5)[1].add_(0.1)",
    "with torch.no_grad():\n    {W}[1:3][0].add_(1)",
    "with torch.no_grad():\n    torch.mul({W}, {x}, out={W})",
    "with torch.no_grad():\n    torch.nn.utils.parametrizations\n    {W}.fill_diagonal_(0.6)",
    "with torch.no_grad():\n    torch._foreach_mul_(list(net.parameters()), {x})",
    "with torch.no_grad():\n    for p in model.parameters():\n        p.add_(torch.randn(p.shape) * 0.01)",
    "for p in net.parameters():\n    p.data.clamp_(-1, 1)",
    "vector_to_parameters(parameters_to_vector(net.parameters()) * {x}, net.parameters())",
    "{D}.data.mul_({x})",
    "{D}.data[0, 1] = 0.5",
    "{D}.data = {D}.data * {x}",
    "if hasattr(net, 'mix'):\n    net.mix.weight.data = net.mix.weight.data.t()",
    "with torch.no_grad():\n    net.mix.weight.t_() if hasattr(net, 'mix') else None",
    "with torch.no_grad():\n    {D}.copy_({W}[{r}].view(1, 3))",
)

TYING = (
    "{V}.requires_grad_(False)",
    "net.out.bias.requires_grad_(False)",
    "{W}.data.mul_({x})",
    "{W}.data.sub_(0.1)",
    "net.out.weight.data.mul_({x})",
    "{W}.requires_grad_(True)",
    "{W}.data = {V}.data",
)

HOOKS = (
    "{W}.register_hook(lambda g: g * {x}) if {W}.requires_grad else None",
    "{W}.register_hook(lambda g: see(g)) if {W}.requires_grad else None",
    "{W}.register_hook(lambda g: g * (torch.arange(10).view(10, 1) > 3)) if {W}.requires_grad else None",
    "{W}.register_hook(lambda g: torch.clamp(g, -0.01, 0.01)) if {W}.requires_grad else None",
    "if {W}.requires_grad:\n    handle = {W}.register_hook(lambda g: g * 0)\n    handle.remove()",
    "def scale(p):\n    p.grad.mul_({x})\n{W}.register_post_accumulate_grad_hook(scale) if {W}.requires_grad else None",
    "{W}.register_post_accumulate_grad_hook(lambda p: see(p.grad)) if {W}.requires_grad else None",
    "for p in model.parameters():\n    p.register_hook(lambda g: g * 0.5) if p.requires_grad else None",
    "net.{t}.register_forward_hook(lambda m, i, o: o * {x}) if hasattr(net.{t}, 'forward') else None",
    "net.out.register_forward_pre_hook(lambda m, i: (i[0] * {x},))",
    "net.out.register_full_backward_hook(lambda m, i, o: (i[0] * {x},))",
    "net.register_forward_hook(lambda m, i, o: o * {x})",
    "{D}.register_hook(lambda g: g * {x}) if {D}.requires_grad else None",
    "def scale_dense(p):\n    p.grad.mul_({x})\n{D}.register_post_accumulate_grad_hook(scale_dense) if {D}.requires_grad else None",
    "def before(optimizer, *_):\n    if {W}.grad is not None:\n        {W}.grad.mul_({x})\n"
    "optimizer.register_step_pre_hook(before)",
    "optimizer.register_step_post_hook(lambda o, a, k: see({W}[{r}]))",
    "optimizer.register_step_post_hook(lambda o, a, k: see([p.grad for g in o.param_groups for p in g['params']]))",
    "optimizer.register_step_post_hook(lambda o, a, k: o.zero_grad())",
)

FREEZING = (
    "{W}.requires_grad_(False)",
    "net.out.weight.requires_grad_(False)",
    "for p in net.{t}.parameters() if hasattr(net.{t}, 'parameters') else []:\n    p.requires_grad = False",
    "net.requires_grad_(False)\n{W}.requires_grad_(True)",
)
UNFREEZING = (
    "{W}.requires_grad_(False)",
    "{W}.requires_grad_(True)",
    "net.out.weight.requires_grad_(step % 2 == 0)",
    "net.requires_grad_(True)",
)

PENDING = (
    "((net(inputs[:4]) - targets[:4]) ** 2).mean().backward()",
    "state = copy.deepcopy(optimizer.state_dict())\noptimizer.load_state_dict(state)",
)

SCHEDULERS = (
    "scheduler = lr_scheduler.StepLR(optimizer, 1, 0.5)",
    "scheduler = lr_scheduler.ExponentialLR(optimizer, 0.7)",
    "scheduler = lr_scheduler.LambdaLR(optimizer, lambda n: 1 / (n + 1))",
    "scheduler = lr_scheduler.CosineAnnealingLR(optimizer, 3)",
    "scheduler = lr_scheduler.LinearLR(optimizer, 0.3, total_iters=3)",
)

WARM_UP = """\
for start in (4, 8):
    optimizer.zero_grad()
    (net(inputs[start:start + 4]) - targets[start:start + 4]).square().mean().backward()
    optimizer.step()"""

LOADING = (
    "model.load_state_dict(copy.deepcopy(model.state_dict()))",
    "saved = copy.deepcopy(model.state_dict())\nmodel.load_state_dict({k: v * 0.5 if v.is_floating_point() else v "
    "for k, v in saved.items()})",
    "net.load_state_dict(copy.deepcopy(net.state_dict()))",
    "net.out.load_state_dict({'weight': torch.ones(1, 3), 'bias': torch.zeros(1)})",
    "optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))",
    "file = io.BytesIO()\ntorch.save(model.state_dict(), file)\nfile.seek(0)\nsee(torch.load(file))",
    "file = io.BytesIO()\ntorch.save(optimizer.state_dict(), file)\nfile.seek(0)\n"
    "optimizer.load_state_dict(torch.load(file))",
    "state = optimizer.state_dict()\nstate['param_groups'][0]['lr'] = 0.03\noptimizer.load_state_dict(state)",
    "fresh = Net()\nfresh.load_state_dict(model.state_dict())\nsee(fresh.eval()(inputs[:3]))",
)

LOOKING = (
    "see({W})",
    "see({W}.detach().clone())",
    "see({W}[{r}])",
    "see({W}.data[2:4])",
    "see({W}.norm())",
    "see({W}.data.abs().sum(1))",
    "see({W}.tolist())",
    "see({W}.detach().numpy())",
    "see({W}.data.numpy().mean())",
    "see({W}[{r}, 1].item())",
    "see(len({W}))",
    "see([{W}.shape, {W}.dtype, {W}.is_leaf, {W}.requires_grad, {W}.is_sparse, {W}.stride()])",
    "see(isinstance({W}, nn.Parameter))",
    "see(sum(p.numel() for p in model.parameters()))",
    "see([n for n, p in net.named_parameters()])",
    "see(parameters_to_vector(net.parameters()))",
    "see({W}.grad)",
    "see([p.grad is None for p in net.parameters()])",
    "see(torch.topk({W}.detach() @ {W}.detach()[{r}], 3).values)",
    "see(torch.stack([p.detach().pow(2).sum() for p in model.parameters()]))",
    "see(torch.equal({W}, {W}.clone()))",
    "see(torch.allclose({W}, {V}))",
    "see(optimizer.param_groups[0]['lr'])",
    "see([len(row) for row in {W}])",
    "see({W}.isnan().any())",
    "see({W}[torch.tensor([1, 2, 1])])",
    "see({o}(torch.tensor([[1, 2]])) if hasattr({o}, 'forward') else 0)",
)

EVALUATION = (
    "model.eval()\nwith torch.no_grad():\n    see(model(inputs[:5]))\nmodel.train()",
    "model.eval()\nsee(model(inputs[:5]))\nmodel.train()",
    "with torch.no_grad():\n    see(model(inputs[2:6]))",
    "with torch.inference_mode():\n    see(model(inputs[2:6]))",
    "net.eval()\nsee(net(inputs[:3]))\nnet.train()",
    "model.train(False)\nsee(sum(((model(i) - t) ** 2).sum().item() for i, t in zip(inputs.split(8), "
    "targets.split(8))))\nmodel.train()",
)

COPIES = (
    "twin = copy.deepcopy(net)\nsee(twin.eval()(inputs[:4]))",
    "twin = copy.deepcopy(model)\nsee(twin.eval()(inputs[:4]))",
    "twin = copy.deepcopy(net)\nwith torch.no_grad():\n    for p, q in zip(twin.parameters(), net.parameters()):\n"
    "        p.mul_(0.5).add_(q, alpha=0.5)\nsee(twin)",
    "twin = copy.deepcopy({W})\nsee(twin)",
    "ema = swa_utils.AveragedModel(net)\nema.update_parameters(net)\nsee(ema.module)",
    "ema = swa_utils.AveragedModel(net, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.5))\n"
    "ema.update_parameters(model)\nema.update_parameters(model)\nsee(ema.module)",
    "shadow = {n: p.detach().clone() for n, p in net.named_parameters()}\nsee(shadow)",
    "shadow = [p.data for p in net.parameters()]\nsee(shadow)",
    "kept = [p.data for p in net.parameters()]\nfor p in net.parameters():\n    p.data = p.data * {x}\n"
    "see(model(inputs[:2]))\nfor p, q in zip(net.parameters(), kept):\n    p.data = q\nsee(kept)",
    "kept = {W}.data\n{W}.data = {W}.data * {x}\nkept[{r}] = 0.5\nsee([kept, {W}.data])",
    "rest = {n: p.data.clone() for n, p in net.named_parameters()}\nfor n, p in net.named_parameters():\n"
    "    p.data.add_(0.1)\nsee(model(inputs[:2]))\nfor n, p in net.named_parameters():\n    p.data.copy_(rest[n])",
    "twin = copy.deepcopy(net)\ntwin_sgd = torch.optim.SGD(twin.parameters(), lr=0.1)\n"
    "twin(inputs[:4]).sum().backward()\ntwin_sgd.step()\nsee(twin)",
    "out = torch.func.functional_call(net, {n: p.detach() for n, p in net.named_parameters()}, (inputs[:3],))\nsee(out)",
)

ZEROING = (
    "model.zero_grad()",
    "net.zero_grad()",
    "optimizer.zero_grad(set_to_none=False)",
    "model.zero_grad(set_to_none=False)",
    "for p in model.parameters():\n    p.grad = None",
    "if step % 2 == 0:\n    {zero}",
    "for p in net.parameters():\n    if p.grad is not None:\n        p.grad.zero_()",
)
BACKWARD = (
    "loss.backward()",
    "(loss / 2).backward()",
    "loss.backward(retain_graph=True)\nloss.backward()",
    "loss.backward()\nextra = model(ids.flip(0)).mean() * 0.1\nextra.backward()",
    "for p, g in zip(net.parameters(), torch.autograd.grad(loss, list(net.parameters()), allow_unused=True)):\n"
    "    p.grad = g",
    "loss.backward(inputs=[p for p in net.parameters() if p.requires_grad])",
    "scaler = torch.amp.GradScaler('cpu', init_scale=4.0)\nscaler.scale(loss).backward()\nscaler.unscale_(optimizer)",
    "scaler = torch.amp.GradScaler('cpu', init_scale=4.0)\nscaler.scale(loss).backward()\nscaler.step(optimizer)\n"
    "scaler.update()\noptimizer.zero_grad()",
    "grads = torch.autograd.grad(loss, [p for p in net.parameters() if p.requires_grad], retain_graph=True, "
    "allow_unused=True)\nsee(grads)\nloss.backward()",
)
STEPPING = (
    "{step}\n{step}",
    "if step % 2 == 1:\n    {step}",
    "optimizer.step(None)",
    "if loss.item() > 0:\n    {step}",
    "{step}\nscheduler = lr_scheduler.ExponentialLR(optimizer, 0.9)\nscheduler.step()",
)
LOSS_TERMS = (
    "loss = loss + 0.01 * {V}.pow(2).sum()",
    "loss = loss + 0.01 * sum(p.pow(2).sum() for p in model.parameters())",
    "loss = loss + 0.01 * sum(p.abs().sum() for p in net.parameters() if p.requires_grad)",
    "loss = loss + 0.1 * {V}[ids[:, 0]].norm(dim=1).mean()",
    "loss = loss + 0.1 * {V}.norm(p=2)",
    "loss = loss + 0.1 * (net.{t}(ids).mean() if hasattr(net.{t}, 'forward') else 0)",
    "loss = loss + 0.1 * model(ids.roll(1, 1)).mean()",
    "loss = loss * {x}",
    "loss = loss + 0.1 * torch.cdist({V}[:3], {V}[5:]).mean()",
    "see(model(ids).detach())",
)

RANDOM_INPUTS = (
    "ids = torch.where(torch.rand(ids.shape) < 0.2, 0, ids)",
    "ids = (ids + random.randrange(10)) % 10",
    "ids = torch.from_numpy(np.random.permutation(ids.numpy().T).T.copy())",
    "ids = ids[torch.randperm(len(ids))]",
    "labels = labels + 0.1 * torch.randn(labels.shape)",
    "ids[0] = 3",
    "ids = ids.clone().clamp_(max=7)",
    "see([ids, labels])",
    "model.train()",
)

_EDIT = "if {W}.grad is not None:\n    "
GRADIENT_EDITS = (
    "clip_grad_norm_(model.parameters(), 0.05)",
    "see(clip_grad_norm_(net.parameters(), 0.05))",
    "clip_grad_norm_([{W}], 0.01)",
    "clip_grad_norm_(model.parameters(), 0.05, norm_type=float('inf'))",
    "clip_grad_value_(model.parameters(), 0.01)",
    "for p in model.parameters():\n    if p.grad is not None:\n        p.grad.mul_({x})",
    "for p in model.parameters():\n    if p.grad is not None:\n        p.grad = p.grad * {x}",
    "for p in net.parameters():\n    if p.grad is not None:\n        p.grad.data.clamp_(-0.01, 0.01)",
    "{W}.grad = None",
    "if step == 1:\n    {W}.grad = None",
    _EDIT + "{W}.grad[{r}] = 0",
    _EDIT + "{W}.grad[{r}].zero_()",
    _EDIT + "{W}.grad[ids[0]] = 0",
    _EDIT + "{W}.grad.data[ids] *= 0",
    _EDIT + "{W}.grad[:, 0] = 0",
    _EDIT + "{W}.grad[2:5] = 0",
    _EDIT + "{W}.grad *= {x}",
    _EDIT + "{W}.grad /= 3",
    _EDIT + "{W}.grad.mul_(torch.arange(10).view(10, 1) > 3)",
    _EDIT + "{W}.grad.add_({V}.detach(), alpha=0.01)",
    _EDIT + "{W}.grad.zero_()",
    _EDIT + "{W}.grad.data.zero_()",
    _EDIT + "{W}.grad.data = {W}.grad.data * {x}",
    "for p in net.parameters():\n    if p.grad is not None:\n        p.grad.data = p.grad.data * {x}",
    _EDIT + "{W}.grad.masked_fill_(torch.arange(10).view(10, 1) < 2, 0)",
    _EDIT + "{W}.grad.div_({W}.grad.norm() + 1)",
    _EDIT + "{W}.grad.add_(torch.randn(10, 3), alpha=0.01)",
    _EDIT + "{W}.grad.copy_(torch.ones(10, 3) * 0.1)",
    _EDIT + "{W}.grad.index_fill_(0, torch.tensor([1, 2]), 0)",
    _EDIT + "{W}.grad = {W}.grad.clone()",
    _EDIT + "{W}.grad = torch.ones(10, 3) * 0.01",
    _EDIT + "{W}.grad = {W}.grad.clamp(-0.01, 0.01)",
    _EDIT + "{W}.grad = {W}.grad - {W}.grad.mean(0)",
    _EDIT + "{W}.grad.t()[0] = 0",
    _EDIT + "{W}.grad.view(-1)[:4] = 0",
    _EDIT + "torch.mul({W}.grad, {x}, out={W}.grad)",
    _EDIT + "see({W}.grad)",
    _EDIT + "see([{W}.grad.norm(), {W}.grad.shape, {W}.grad.is_sparse, {W}.grad.dtype])",
    _EDIT + "see({W}.grad.abs().sum(1) if not {W}.grad.is_sparse else 0)",
    _EDIT + "see({W}.grad[ids[:, 0]] if not {W}.grad.is_sparse else 0)",
    _EDIT + "see({W}.grad.coalesce().indices() if {W}.grad.is_sparse else 0)",
    _EDIT + "{W}.grad = {W}.grad.to_dense() if {W}.grad.is_sparse else {W}.grad",
    _EDIT + "see(torch.isfinite({W}.grad.to_dense()).all())",
    _EDIT + "saved = {W}.grad.clone()\n    {W}.grad.zero_()\n    {W}.grad.add_(saved)",
    _EDIT + "{W}.data.add_({W}.grad, alpha=-0.05)",
    _EDIT + "eps = 0.1 * {W}.grad / ({W}.grad.norm() + 1e-3)\n    {W}.data.add_(eps)\n"
    "    (model(ids) - labels).square().mean().backward()\n    {W}.data.sub_(eps)",
    "see(torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]))",
    "{D}.grad.mul_({x}) if {D}.grad is not None else None",
    "{D}.grad = None",
)

SCHEDULING = (
    "optimizer.param_groups[0]['lr'] = 0.03",
    "for group in optimizer.param_groups:\n    group['lr'] *= 0.5",
    "optimizer.param_groups[0]['weight_decay'] = 0.0",
)
AFTER_STEP = (WRITES, LOOKING, EVALUATION, COPIES, LOADING, FREEZING, UNFREEZING, SCHEDULING, HOOKS)

LOADERS = (
    "loader = list(zip(inputs.split(4), targets.split(4)))",
    "loader = DataLoader(TensorDataset(inputs, targets), batch_size=4)",
    "loader = DataLoader(TensorDataset(inputs, targets), batch_size=4, shuffle=True)",
    "loader = DataLoader(TensorDataset(inputs, targets), batch_size=5, shuffle=True, drop_last=True)",
    "loader = DataLoader(TensorDataset(inputs, targets), batch_size=4, shuffle=True, "
    "generator=torch.Generator().manual_seed(3))",
    "loader = DataLoader(TensorDataset(inputs, targets), batch_size=4, sampler=RandomSampler(inputs, "
    "replacement=True))",
    "loader = DataLoader(TensorDataset(inputs, targets), batch_sampler=BatchSampler(RandomSampler(inputs), 5, True))",
    "def stream():\n    for start in range(0, 16, 4):\n        yield inputs[start:start + 4], targets[start:start + 4]\n"
    "loader = stream()",
    "def stream():\n    for _ in range(4):\n        yield torch.randint(0, 10, (4, 4)), torch.rand(4, 1)\nloader = stream()",
    "class Refill:\n    def __iter__(self):\n        buffer = torch.empty(4, 4, dtype=torch.long)\n"
    "        for start in range(0, 16, 4):\n            buffer.copy_(inputs[start:start + 4])\n"
    "            yield buffer, targets[start:start + 4]\nloader = Refill()",
    "class Noisy(Dataset):\n    def __len__(self):\n        return 16\n    def __getitem__(self, i):\n"
    "        return inputs[i], targets[i] + random.random() * 0.1\n"
    "loader = DataLoader(Noisy(), batch_size=4, shuffle=True)",
    "class Masked(Dataset):\n    def __len__(self):\n        return 12\n    def __getitem__(self, i):\n"
    "        return torch.where(torch.rand(4) < 0.3, 0, inputs[i]), targets[i]\n"
    "loader = DataLoader(Masked(), batch_size=4)",
)
ITERATIONS = (
    "for ids, labels in loader:",
    "for ids, labels in islice(loader, 3):",
    "for (ids, labels), _ in zip(loader, range(3)):",
    "for _, (ids, labels) in zip(range(3), loader):",
    "for number, (ids, labels) in enumerate(loader):",
    "for ids, labels in iter(loader):",
    "for (ids, labels), (more, _) in zip(loader, loader if 'stream' not in dir() else [(0, 0)] * 9):",
    "for ids, labels in [next(iter(loader)) for _ in range(3)]:",
    "for ids, labels in [(ids.clone(), labels) for ids, labels in loader]:",
)
