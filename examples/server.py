"""The parameter server alone, with NumPy: matrix factorization of ratings, its gradients written by hand.

Users and items are two tables. Intent for the rows of each step is signalled ten steps ahead, so that the
rows are local at that step.

    python examples/server.py
    torchrun --nproc-per-node 2 examples/server.py
"""

import argparse

import numpy as np

import adaps

LENGTH, AHEAD = 8, 10


def ratings(users: int, items: int, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return generated users, items and ratings, equal on every node."""
    random = np.random.default_rng(0)
    tastes = random.normal(size=(users, LENGTH)) / LENGTH**0.5
    qualities = random.normal(size=(items, LENGTH))
    who, what = random.integers(users, size=count), random.integers(items, size=count)
    return who, what, (tastes[who] * qualities[what]).sum(1).astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description="Factorizes generated ratings on the parameter server.")
    parser.add_argument("--users", type=int, default=2_000)
    parser.add_argument("--items", type=int, default=500)
    parser.add_argument("--ratings", type=int, default=50_000)
    parser.add_argument("--epochs", type=int, default=5)
    given = parser.parse_args()

    tables = [
        adaps.Table(name, rows, LENGTH, adaps.Adagrad(lr=0.1), adaps.Normal(std=0.3, seed=seed))
        for seed, (name, rows) in enumerate({"users": given.users, "items": given.items}.items())
    ]
    with adaps.Node(tables) as node:  # A single node, or one of torchrun's processes.
        kv = node.worker(0)
        own = slice(node.rank, None, node.world_size)  # This node's part of the ratings.
        who, what, rating = (array[own] for array in ratings(given.users, given.items, given.ratings))
        who, what = node.table("users").keys(who.copy()), node.table("items").keys(what.copy())
        batches = [slice(first, first + 256) for first in range(0, len(who), 256)]

        for epoch in range(given.epochs):
            errors = []
            for step, batch in enumerate(batches):
                first = step if step == 0 else step + AHEAD  # at first ten steps, then one
                for later, used in enumerate(batches[first : step + AHEAD + 1], first):
                    kv.intent(np.concatenate([who[used], what[used]]), kv.current_clock + later - step)
                errors.append(train(kv, who[batch], what[batch], rating[batch]))
                kv.advance_clock()
            # Errors of this node's ratings, each before the step that learns from it.
            print(f"node {node.rank}, epoch {epoch + 1}: error {np.concatenate(errors).std():.3f}")

        kv.wait_sync()
        stats = node.stats()
        local = stats["pulled_local"] + stats["pulled_replica"]
        print(f"node {node.rank}: {local / (local + stats['pulled_remote']):.1%} of the rows were local")


def train(kv: adaps.Worker, who: np.ndarray, what: np.ndarray, rating: np.ndarray) -> np.ndarray:
    """Make one step of gradient descent on the squared error; returns the errors."""
    users, positions = adaps.deduplicate(who)
    items, places = adaps.deduplicate(what)
    tastes, qualities = (np.empty((len(keys), LENGTH), np.float32) for keys in (users, items))
    kv.pull(users, tastes)
    kv.pull(items, qualities)
    error = (tastes[positions] * qualities[places]).sum(1) - rating
    of_tastes, of_qualities = np.zeros_like(tastes), np.zeros_like(qualities)
    np.add.at(of_tastes, positions, error[:, None] * qualities[places])
    np.add.at(of_qualities, places, error[:, None] * tastes[positions])
    kv.push_gradients(users, of_tastes)  # The table's optimizer runs at the node that owns the rows.
    kv.push_gradients(items, of_qualities)
    return error


if __name__ == "__main__":
    main()
