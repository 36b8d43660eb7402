"""The models, and batches that are the same in every process; a rank uses its rows of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

_SEED = 0
_NUM_BATCHES = 8
_WIDTH, _DEPTH = 1024, 3
_VOCABULARY, _LENGTH = 1000, 32
_CHANNELS, _HEADS, _LAYERS = 256, 4, 4


@dataclass(frozen=True)
class Task:
    """A model, and batches for all ranks together; the same in every process.

    Attributes:
        batches: pairs of inputs and targets, one row for each sample.
        layers: the parts of the model that FSDP2 shards one by one.
    """

    model: nn.Module
    batches: list[tuple[Tensor, Tensor]]
    layers: Sequence[nn.Module]


def make_task(model: str, batch: int) -> Task:
    """Make a model and its batches.

    Args:
        model: digits, a perceptron of wide layers for scikit-learn's images of handwritten digits;
            or transformer, which predicts the next of random tokens.
        batch: samples of all ranks together.
    """
    torch.manual_seed(_SEED)
    if model != "digits":
        tokens = torch.randint(_VOCABULARY, (_NUM_BATCHES, batch, _LENGTH + 1))
        model_of_tokens = _Transformer()
        pairs = [(some[:, :-1], some[:, 1:]) for some in tokens]
        return Task(model_of_tokens, pairs, [*model_of_tokens.layers.layers])
    from sklearn.datasets import load_digits

    pixels, numbers = load_digits(return_X_y=True)
    images, labels = torch.from_numpy(pixels / 16).float(), torch.from_numpy(numbers)
    widths = [images.shape[1], *[_WIDTH] * _DEPTH]
    hidden = [
        layer
        for before, after in zip(widths, widths[1:], strict=False)
        for layer in (nn.Linear(before, after), nn.ReLU())
    ]
    rows = (torch.arange(_NUM_BATCHES * batch) % len(labels)).view(_NUM_BATCHES, batch)
    perceptron = nn.Sequential(*hidden, nn.Linear(_WIDTH, 10))
    layers = [layer for layer in perceptron if isinstance(layer, nn.Linear)]
    return Task(perceptron, [(images[some], labels[some]) for some in rows], layers)


class _Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(_VOCABULARY, _CHANNELS)
        self.positions = nn.Embedding(_LENGTH, _CHANNELS)
        layer = nn.TransformerEncoderLayer(
            _CHANNELS, _HEADS, 4 * _CHANNELS, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, _LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(_CHANNELS, _VOCABULARY)
        mask = nn.Transformer.generate_square_subsequent_mask(_LENGTH)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits, classes before positions as cross_entropy takes them."""
        places = self.positions(torch.arange(_LENGTH))
        hidden = self.layers(self.tokens(tokens) + places, mask=self.mask, is_causal=True)
        # Contiguous: FSDP2 warns of a model that returns a view.
        return self.head(hidden).transpose(1, 2).contiguous()  # type: ignore[no-any-return]
