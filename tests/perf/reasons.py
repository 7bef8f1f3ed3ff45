"""Why a goal is missed where it is: the floor in bytes and operations, and what is spent above it.

`results/reference/SPEED.md` has the profiles that these sentences sum up, and what was tried.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["WHY", "reason"]

WHY: Mapping[str, str] = {
    "pull of": (
        "a row of n floats is n / 16 cache lines read at random and as many written, which are read "
        "before if results do not fit into the cache, for both; a pull also reads the line of the key's "
        "word, and again, as nobody may have locked the key meanwhile: one line more than the two of 32 "
        "floats, or than the eight of 128. It wins by asking for lines early and by huge pages; with "
        "100,000 long rows both wait for the same memory, and what torch takes times 25 / 24 is the "
        "floor. On Intel a core has at most sixteen lines under way, 8 ns each where this was measured, so "
        "that the third line of a key cannot be hidden. With calls of 1,000 keys the check of the keys and "
        "the call itself are not yet spread over enough rows"
    ),
    "push of": (
        "a row of n floats is n / 16 cache lines of deltas read, and as many read and written at random, for "
        "both; a push adds the line of the key's word, and locks the key, which waits for what its core has "
        "under way: 16 ns of a row of 32 floats. With 100,000 long rows both wait for the same memory"
    ),
    "push_gradients of": (
        "Adagrad reads and writes value and state, 16 bytes per float, and takes a square root and a "
        "division; that arithmetic is the floor of both, and only what torch spends around it can be saved"
    ),
    "2 worker threads": (
        "threads share no key here, but memory: two that miss the cache at once wait for the same channels, "
        "and two virtual cores of one physical core share its execution units, too; the figure is relative "
        "to two threads that hash, which do not use memory"
    ),
    "pull of 1 from another node": (
        "a raw exchange wakes one thread a side; a pull wakes the channel's thread on either node and then "
        "the worker, one wake-up more each way, some microseconds each on a machine whose cores sleep when "
        "they are idle"
    ),
    "pull of 1,000 from another node": (
        "the same bytes cross, but a pull also packs keys and rows into a frame and out of it, one copy more "
        "on either side, and wakes one thread more each way than the raw exchange does"
    ),
    "intent calls": (
        "duplicates are found with one table access per key, a random cache line while the table is larger "
        "than the cache; what is new is queued once for the channel's thread"
    ),
    "CTR step": (
        "forward and backward of the dense layers are the same arithmetic on both sides and most of a step; "
        "on one node the parameter server can only save in the gather and the update of rows, and pays for "
        "the sampling of what the model reads"
    ),
    "CTR on 2 nodes, CPU per sample": (
        "a sample reads 26 rows of 16 floats. The floor gathers 1.7 kB and adds 1.7 kB back. Beyond it every "
        "system finds a batch's duplicates, keeps Adagrad's state (another 1.7 kB read and written), reads "
        "its batches, and sends what the other node changed or needs: copies by the kernel on both sides, or "
        "one into shared memory. Ours also signals intent and keeps replicas of frequent rows in step: their "
        "changes cross the network once per round however many samples caused them"
    ),
    "CTR on 2 nodes, samples per second": (
        "on two cores the background threads that carry intent and rows run on the cores that train, so that "
        "CPU seconds per sample decide here as well; see that row"
    ),
    "CTR on 2 nodes, links": (
        "with latency hidden what remains is the CPU time of a sample, on two cores the peers' as well as "
        "ours: a peer that waits for a link leaves its core to the other node and to the relay between the "
        "namespaces. The ratio can be no more than the peer's time on the wire and in waiting, over our CPU "
        "time"
    ),
    "CTR between namespaces": (
        "every packet is read and written once more, by a relay that shares the cores with both nodes: what "
        "that costs is the row of links that delay nothing; beyond it rows that are wanted at once wait for "
        "the link, and refreshes come later"
    ),
    "CTR over lan links": (
        "rows travel while earlier batches are trained, but frames that are held for the link's latency wake "
        "the transport's thread once more each, and rows that are wanted by both nodes at once are refreshed "
        "later; both cost CPU time on the cores that train"
    ),
    "CTR on 2 nodes, a core each": (
        "one node trains without any message; each of two has half of the rows elsewhere and its background "
        "threads share its one core. Twice the CPU time of a sample on one node over that on two (both stand "
        "in the table of what each system took) is the most that can be reached: packing, wake-ups and "
        "replicas' rounds come off the factor of 2, and both cores share the memory's bandwidth"
    ),
    "GCN on 2 nodes, a core each": (
        "the sampled neighbourhoods of the nodes overlap, so features and weights are replicated and their "
        "changes exchanged every round; that and the rows that move are CPU time which one node alone does "
        "not spend, on the core that trains. Twice the CPU time of a sample on one node over that on two "
        "(both stand in the table of what each system took) is the most that can be reached"
    ),
    "CTR on 2 nodes, a core each, CPU per sample": (
        "per sample 14.3 keys begin to be announced and 14.3 end, 4.1 INTENT, 3.9 TRANSFER, 1.2 SETUP, "
        "1.2 DELTA, 1.1 ACK and 1.7 REFRESH are sent and handled, 1.6 kB: some 56 visits to keys, of "
        "four cache lines where values are moved, and 1.6 kB of copies into shared memory. At the 5 ns that "
        "a line takes when enough of them are under way, these are a microsecond; the rest is "
        "instructions, wake-ups and, likely, what channels push out of workers' caches"
    ),
    "GCN on 2 nodes, a core each, CPU per sample": (
        "a sample is a node with its sampled neighbourhood, whose rows the other node often reads, too: "
        "they are replicated, and each step's changes cross once per round. Less would need fewer "
        "exchanges, which costs accuracy, or parts of the graph that share fewer nodes"
    ),
    "KGE on 2 nodes, a core each": (
        "a core that trains beside another one has less of the memory's bandwidth: two runs on one node "
        "at once, a core each, do 1.88 times the work of one. What comes off that are copies of rows of "
        "256 floats and as many of state, which every round of changes carries, and a node that waits "
        "at the end of an epoch for the other"
    ),
    "adaptive, ": (
        "with fewer cores than nodes, or links that delay little, a node that waits leaves its core to "
        "another one or waits for a short time only: what intent saves is worth less than its visits to "
        "keys and its messages. The best of three others in each block also has the luckiest of three runs"
    ),
    "training while an export": (
        "an export takes 80 to 100 ms of CPU time where this was measured, on two cores that both train, "
        "and 4,000 steps some 1.6 s"
    ),
    "simulation of 100 steps": (
        "one thread runs the real code of 64 nodes, whose tables and queues are far larger than its "
        "caches; what of that time is waiting for memory was not measured"
    ),
    "idle cluster": "rounds go on while nothing changes, to notice that a node is gone",
    "resident bytes": (
        "a slot has 16 bytes of its own beside 4.6 of its key: the word, and a part of a stamp; memory "
        "comes in huge pages of 2 MiB, of which the last may be mostly empty"
    ),
}
"""Beginning of a row's name -> reason; of several beginnings the longest counts."""


def reason(what: str) -> str:
    """Why a row misses its goal, as far as it is known."""
    fitting = [beginning for beginning in WHY if what.startswith(beginning)]
    return WHY[max(fitting, key=len)] if fitting else "no reason noted"
