"""Systems for comparison: plain PyTorch, a lower bound, and parameter management of other libraries."""
