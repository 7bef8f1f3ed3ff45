"""Update rules of the server for torch.optim optimizers, and their learning rate schedules."""
