"""Fused operations of Habana's hpex, as torch's own."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_STEPS = 1e9
"""So many steps that 1 - beta ** steps is 1."""


class FusedAdamW(torch.optim.AdamW):
    """AdamW with the defaults of Habana's; `bias_correction=False` as in BERT's."""

    def __init__(  # noqa: PLR0913  # Habana's signature
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        bias_correction: bool = True,
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
        self._bias_correction = bias_correction

    def _init_group(self, *arguments: Any) -> Any:
        found = super()._init_group(*arguments)  # type: ignore[no-untyped-call]
        if not self._bias_correction:
            for steps in arguments[-1]:
                steps.fill_(_STEPS)
        return found


class FusedClipNorm:
    """Clips the norm of gradients."""

    def __init__(self, parameters: Iterable[Tensor], max_norm: float, *_: Any) -> None:
        """Take the largest norm; `clip_norm` names the parameters again."""
        self._max_norm = max_norm

    def clip_norm(self, parameters: Iterable[Tensor]) -> Tensor:
        """Clip the gradients, and return their norm."""
        return torch.nn.utils.clip_grad_norm_(parameters, self._max_norm)


class FusedRMSNorm:
    """RMS norm over the last dimension."""

    @staticmethod
    def apply(values: Tensor, weight: Tensor, eps: float, *_: Any) -> Tensor:
        """Return the values, normalised and times `weight`."""
        return functional.rms_norm(values, weight.shape, weight, eps)


class FusedSDPA:
    """Scaled dot-product attention."""

    @staticmethod
    def apply(  # noqa: PLR0913  # Habana's signature
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        softmax_mode: str = "None",
        recompute_mode: bool | None = None,
        valid_sequence_lengths: Tensor | None = None,
        *_: Any,
    ) -> Tensor:
        """Return torch's attention; the modes of softmax and recomputation have no effect."""
        if valid_sequence_lengths is not None:
            raise NotImplementedError("valid_sequence_lengths: pass attn_mask on the CPU")
        options: dict[str, Any] = {"scale": scale, "enable_gqa": query.shape[-3] != key.shape[-3]}
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, **options
        )
