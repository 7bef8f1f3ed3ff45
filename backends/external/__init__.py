"""Systems to compare with: plain PyTorch, a lower bound, and other libraries' parameter management."""
