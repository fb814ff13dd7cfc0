import torch

from roles.engines.training.attention import packed_attention

HEADS, KEY_HEADS, SIZE = 4, 2, 8
RUNS = ((5, 2), (3, 1), (1, 3))


def test_every_sequence_attends_to_its_own_past_alone():
    """As a dense mask over the whole row would have it, gradients too."""
    torch.manual_seed(0)
    width = sum(length * count for length, count in RUNS)
    lengths = [length for length, count in RUNS for _ in range(count)]
    segments = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    mask = (segments[:, None] == segments[None, :]).tril()
    heads = [torch.randn(1, n, width, SIZE) for n in (HEADS, KEY_HEADS, KEY_HEADS)]
    weights = torch.randn(1, width, HEADS, SIZE)

    packed = [tensor.clone().requires_grad_() for tensor in heads]
    attended, _ = packed_attention(None, *packed, None, scaling=0.3, runs=RUNS, unknown=1)
    (attended * weights).sum().backward()

    query, key, value = dense = [tensor.clone().requires_grad_() for tensor in heads]
    key, value = (tensor.repeat_interleave(HEADS // KEY_HEADS, 1) for tensor in (key, value))
    scores = (0.3 * query @ key.mT).masked_fill(~mask, float("-inf")).softmax(-1)
    expected = (scores @ value).transpose(1, 2)
    (expected * weights).sum().backward()

    torch.testing.assert_close(attended, expected)
    for ours, theirs in zip(packed, dense, strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
