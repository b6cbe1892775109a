"""The models of these tests are so small that more threads of PyTorch only wait for each other."""

try:
    import torch
except ImportError:
    pass
else:
    torch.set_num_threads(1)
