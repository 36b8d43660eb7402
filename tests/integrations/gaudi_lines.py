"""Lines that programs for Gaudi begin with, and what the shim makes of them on a CPU.

The lines are those of Habana's Model-References, of Optimum Habana, of lightning-habana and of the
documentation of Gaudi's PyTorch, by how many programs have them. `test_gaudi_lines.py` runs each.
`python3 tests/integrations/gaudi_lines.py` writes the table of docs/frameworks/habana.md.
"""

from enum import Enum
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).parents[2] / "docs/frameworks/habana.md"
BEGIN, END = "<!-- written by tests/integrations/gaudi_lines.py -->", "<!-- end -->"


class Kind(Enum):
    """What a line does on the CPU."""

    SAME = "the same"
    NOTHING = "no effect, which rank 0 prints once"
    ERROR = "an error with what to write instead"


class Lines(NamedTuple):
    """Lines of one kind, run in the namespace of those before.

    Attributes:
        kind: what they do.
        means: for the page; of an error a part of its text.
        lines: Python.
        holds: an expression that is true afterwards.
    """

    kind: Kind
    means: str
    lines: tuple[str, ...]
    holds: str = "True"


IMPORTS = (
    "import habana_frameworks.torch.core as htcore",
    "import habana_frameworks.torch as ht",
    "import habana_frameworks.torch.core",
    "import habana_frameworks.torch.core.hccl",
    "import habana_frameworks.torch.distributed.hccl as hpu_dist",
    "from habana_frameworks.torch.distributed.hccl import initialize_distributed_hpu",
    "from habana_frameworks.torch.utils.distributed_utils import initialize_distributed_hpu",
    "import habana_frameworks.torch.hpu as hthpu",
    "import habana_frameworks.torch.hpu.graphs as htgraphs",
    "import habana_frameworks.torch.hpu.random as hpu_random",
    "import habana_frameworks.torch.utils.debug as htdebug",
    "import habana_frameworks.torch.utils.experimental as htexp",
    "from habana_frameworks.torch.hpex import hmp",
    "from habana_frameworks.torch.core import mark_step",
    "import habana_dataloader",
)
SAME = (
    Lines(
        Kind.SAME,
        "`(world_size, rank, local_rank)` of the job",
        ("initialize_distributed_hpu()", "hpu_dist.initialize_distributed_hpu()"),
        "_ == (1, 0, 0)",
    ),
    Lines(
        Kind.SAME,
        "the device's work is done: nothing is left to do",
        (
            *("htcore.mark_step()", "mark_step()", "htcore.hpu_initialize()"),
            *("torch.hpu.synchronize()", "htcore.hpu.synchronize()", "hthpu.synchronize()"),
            *("hthpu.enable_dynamic_shape()", "hthpu.disable_dynamic_shape()"),
            *("torch.hpu.init()", "htcore.hpu.set_device(0)", "hmp.convert()"),
        ),
        "_ is None",
    ),
    Lines(
        Kind.SAME,
        "`True`",
        (
            *("torch.hpu.is_available()", "hthpu.is_initialized()", "htexp.hpu.is_available()"),
            *("htcore.is_enabled_weight_permute_pass()", "torch.hpu.is_bf16_supported()"),
            "htdebug._is_enabled_synapse_layout_handling()",
            "from habana_frameworks.torch.utils.library_loader import is_habana_available; "
            "_ = is_habana_available()",
        ),
        "_ is True",
    ),
    Lines(
        Kind.SAME,
        "the ranks of this node",
        ("torch.hpu.device_count()", "htexp.hpu.device_count()", "htcore.hpu.device_count()"),
        "_ == 1",
    ),
    Lines(Kind.SAME, "0", ("torch.hpu.current_device()",), "_ == 0"),
    Lines(Kind.SAME, '`"CPU"`', ("torch.hpu.get_device_name()",), "_ == 'CPU'"),
    Lines(
        Kind.SAME,
        "Gaudi 2, for which programs need no workaround",
        ("htexp._get_device_type()",),
        "_ == htexp.synDeviceType.synDeviceGaudi2 != htexp.synDeviceType.synDeviceGaudi",
    ),
    Lines(
        Kind.SAME,
        "the process's memory in bytes",
        (
            *("torch.hpu.memory_allocated()", "torch.hpu.max_memory_allocated()"),
            *("torch.hpu.memory_reserved()", "torch.hpu.memory.max_memory_allocated()"),
            *("torch.hpu.memory_stats()['InUse']", "ht.hpu.memory.memory_stats()['MaxInUse']"),
            "ht.hpu.memory.max_memory_reserved()",
        ),
        "_ > 2**20",
    ),
    Lines(
        Kind.SAME,
        "the machine's memory in bytes",
        (
            *("torch.hpu.mem_get_info()[1]", "torch.hpu.memory_stats()['Limit']"),
            "torch.hpu.get_device_properties(0).total_memory",
        ),
        "_ > 2**28",
    ),
    Lines(
        Kind.SAME,
        "the generator of the CPU",
        (
            *("hpu_random.manual_seed_all(3)", "torch.hpu.manual_seed(3)"),
            "hpu_random.set_rng_state(hpu_random.get_rng_state())",
            "hpu_random.set_rng_state_all(hpu_random.get_rng_state_all())",
        ),
        "True",
    ),
    Lines(
        Kind.SAME,
        "one stream; an event is a point in time",
        (
            *("torch.hpu.Stream()", "ht.hpu.default_stream()", "ht.core.hpu.default_stream()"),
            *("torch.hpu.current_stream()", "torch.hpu.Event(enable_timing=True)"),
        ),
        "_.query()",
    ),
    Lines(
        Kind.SAME,
        "time in milliseconds",
        (
            "begin, end = hthpu.Event(), hthpu.Event(); begin.record(); end.record()",
            "_ = begin.elapsed_time(end)",
        ),
        "begin.elapsed_time(end) >= 0",
    ),
    Lines(
        Kind.SAME,
        "the block runs as it is",
        (
            "with ht.hpu.stream(ht.hpu.Stream()): _ = 1",
            "with ht.hpu.sdp_kernel(enable_recompute=False): _ = 1",
            "with hmp.disable_casts(): _ = 1",
            "with torch.hpu.device(0): _ = 1",
        ),
        "_ == 1",
    ),
    Lines(
        Kind.SAME,
        "the model",
        (
            *("ht.hpu.wrap_in_hpu_graph(model)", "htgraphs.wrap_in_hpu_graph(model)"),
            "htcore.hpu.ModuleCacher()(model=model, inplace=True)",
            "htgraphs.make_graphed_callables(model, ())",
        ),
        "_ is model",
    ),
    Lines(
        Kind.SAME,
        "the optimizer of torch",
        (
            "from habana_frameworks.torch.hpex.optimizers import FusedAdamW as optimizer",
            "from habana_frameworks.torch.hpex.optimizers import FusedSGD as optimizer",
            "from habana_frameworks.torch.hpex.optimizers import FusedAdagrad as optimizer",
            "from habana_frameworks.torch.hpex.optimizers import FusedResourceApplyMomentum"
            " as optimizer",
        ),
        "trains(optimizer(model.parameters(), lr=0.1))",
    ),
    Lines(
        Kind.SAME,
        "`torch.nn.utils.clip_grad_norm_`",
        (
            "from habana_frameworks.torch.hpex.normalization import FusedClipNorm",
            "_ = FusedClipNorm(model.parameters(), 1.0).clip_norm(model.parameters())",
        ),
        "True",
    ),
    Lines(
        Kind.SAME,
        "`torch.nn.functional.rms_norm`",
        ("from habana_frameworks.torch.hpex.normalization import FusedRMSNorm",),
        "FusedRMSNorm.apply(values, ones, 1e-6).equal("
        "torch.nn.functional.rms_norm(values, (4,), ones, 1e-6))",
    ),
    Lines(
        Kind.SAME,
        "`torch.nn.functional.scaled_dot_product_attention`",
        (
            "from habana_frameworks.torch.hpex.kernels import FusedSDPA",
            "import habana_frameworks.torch.hpex.kernels as hpu_kernels; "
            "FusedSDPA = hpu_kernels.FusedSDPA",
        ),
        "FusedSDPA.apply(values, values, values, None, 0.0, True, None, 'fast', False).equal("
        "torch.nn.functional.scaled_dot_product_attention(values, values, values, is_causal=True))",
    ),
    Lines(
        Kind.SAME,
        "`torch.nn.CTCLoss`",
        ("from habana_frameworks.torch.hpex.kernels import CTCLoss",),
        "CTCLoss is torch.nn.CTCLoss",
    ),
    Lines(
        Kind.SAME,
        "`torch.utils.data.DataLoader`",
        ("from habana_dataloader import HabanaDataLoader",),
        "HabanaDataLoader is habana_dataloader.HabanaDataLoader is torch.utils.data.DataLoader",
    ),
    Lines(
        Kind.SAME,
        "autocast of the CPU",
        ("hthpu.is_autocast_hpu_enabled()", "hthpu.get_autocast_hpu_dtype()"),
        "_ in (False, torch.bfloat16)",
    ),
    Lines(
        Kind.SAME,
        "compiled by inductor",
        (
            "torch.compile(model, backend='hpu_backend')",
            "model.compile(backend='hpu_backend'); _ = model",
        ),
        "callable(_)",
    ),
    Lines(
        Kind.SAME,
        "whether `PT_HPU_LAZY_MODE` is 1",
        ("htcore.is_lazy()",),
        "_ is False",
    ),
    Lines(
        Kind.SAME,
        "the function is called at once",
        ("called = []; htcore.add_step_closure(called.append, (1,))",),
        "called == [1]",
    ),
    Lines(
        Kind.SAME,
        "hccl-py's Horovod API, if Horovod is not installed",
        ("import horovod.torch as hvd",),
        "hvd.DistributedOptimizer.__module__.startswith('hccl_py')",
    ),
    Lines(
        Kind.SAME,
        "1.24.0",
        ("import importlib.metadata; _ = importlib.metadata.version('habana-torch-plugin')",),
        "_ == '1.24.0'",
    ),
)
NOTHING = Lines(
    Kind.NOTHING,
    "no effect, which rank 0 prints once",
    (
        *("htcore.hpu_set_env()", "htcore.hpu_set_inference_env()", "htcore.hpu_reset_env()"),
        *("htcore.hpu_inference_initialize(model)", "htcore.hpu_teardown_inference_env()"),
        "htcore.quantization.hpu_set_inference_env()",
        *("torch.hpu.reset_peak_memory_stats()", "torch.hpu.memory.reset_peak_memory_stats()"),
        *("torch.hpu.empty_cache()", "htcore.hpu.setDeterministic(True)"),
        "hthpu.enable_inference_mode()",
        "hthpu.enable_const_section_serialization('path')",
        "from habana_frameworks.torch.dynamo.compile_backend.experimental import "
        "enable_compiled_autograd; enable_compiled_autograd()",
    ),
    "_ is None",
)
ERRORS = (
    Lines(
        Kind.ERROR,
        "torch has none: use torch.optim.AdamW or SGD",
        (
            "from habana_frameworks.torch.hpex.optimizers import FusedLamb; FusedLamb([])",
            "from habana_frameworks.torch.hpex.optimizers import FusedLars; FusedLars([])",
        ),
    ),
    Lines(
        Kind.ERROR,
        "use torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn",
        ("from habana_frameworks.torch.hpex.movingavrg import FusedEMA; FusedEMA(model, 0.9)",),
    ),
    Lines(
        Kind.ERROR,
        "write the rotation in torch",
        (
            "from habana_frameworks.torch.hpex.kernels import RotaryPosEmbeddingHelperV2 "
            "as FusedRoPE; FusedRoPE.apply(1)",
            "from habana_frameworks.torch.hpex.kernels import RotaryPosEmbeddingMode, "
            "apply_rotary_pos_emb; apply_rotary_pos_emb(1)",
        ),
    ),
    Lines(
        Kind.ERROR,
        "use torchvision.ops.nms",
        ("from habana_frameworks.torch.hpex.kernels import CustomNms; CustomNms()",),
    ),
    Lines(
        Kind.ERROR,
        "run the same operations without a graph: the CPU runs each at once",
        ("ht.hpu.HPUGraph()", "ht.hpu.graphs.CachedParams()", "ht.hpu.graphs.input_hash([])"),
    ),
    Lines(
        Kind.ERROR,
        "the CPU compiles no graphs",
        ("from habana_frameworks.torch.hpu.metrics import metric_global; metric_global('x')",),
    ),
    Lines(
        Kind.ERROR,
        "use torch's DataLoader and the transforms of torchvision",
        (
            "from habana_frameworks.mediapipe.mediapipe import MediaPipe; MediaPipe()",
            "from habana_frameworks.mediapipe import fn; fn.ReadImageDatasetFromDir()",
            "from habana_frameworks.mediapipe.media_types import imgtype, dtype; imgtype.RGB_P",
            "from habana_frameworks.mediapipe.operators.cpu_nodes.cpu_nodes import media_function"
            "; media_function()",
            "from habana_frameworks.mediapipe.plugins.iterator_pytorch import "
            "HPUResnetPytorchIterator as it; it()",
            "habana_dataloader.habana_dataset.ImageFolderWithManifest()",
            "import habana_dataloader.habana_dl_app as app; app.HabanaAcceleratedPytorchDL()",
            "from habana_dataloader.aeon_config import get_aeon_config; get_aeon_config()",
            "from habana_dataloader import fetch_habana_unet_loader; fetch_habana_unet_loader()",
        ),
    ),
    Lines(
        Kind.ERROR,
        "build the extension with torch.utils.cpp_extension",
        (
            "from habana_frameworks.torch.utils.lib_utils import get_include_dir, get_lib_dir"
            "; get_include_dir()",
        ),
    ),
    Lines(
        Kind.ERROR,
        "train in bfloat16 or float32",
        (
            "import habana_frameworks.torch.hpex.experimental.transformer_engine as te",
            "from habana_frameworks.torch.hpex.kernels.Fp8Ops import cast_to_fp8_v2",
            "from habana_frameworks.torch.core.quantizer import _mark_params_as_const",
        ),
    ),
    Lines(
        Kind.ERROR,
        'write device "hpu" or "cpu", and init_process_group("hccl")',
        ("import habana_frameworks.torch.gpu_migration",),
    ),
    Lines(
        Kind.ERROR,
        "use torch.profiler",
        ("from habana_frameworks.torch.activity_profiler import DebugActivity",),
    ),
)
TORCH = (Lines(Kind.SAME, "a stand-in", IMPORTS), *SAME, NOTHING, *ERRORS)
"""Run by programs of torch."""

TENSORFLOW = (
    Lines(
        Kind.SAME,
        "nothing is left to do",
        ("from habana_frameworks.tensorflow import load_habana_module; load_habana_module()",),
    ),
    Lines(
        Kind.SAME,
        "rank and ranks of the job",
        (
            "from habana_frameworks.tensorflow.multinode_helpers import comm_size, comm_rank"
            "; _ = comm_size(), comm_rank()",
        ),
        "_ == (1, 0)",
    ),
    Lines(
        Kind.SAME,
        '`"CPU"`',
        ("from habana_frameworks.tensorflow.habana_device import get_type; _ = get_type()",),
        "_ == 'CPU'",
    ),
    Lines(
        Kind.NOTHING,
        "no effect, which rank 0 prints once",
        (
            "from habana_frameworks.tensorflow.synapse_logger_helpers import synapse_logger_init"
            "; synapse_logger_init()",
            "import habana_frameworks.tensorflow.py_synapse_logger as syn_log; "
            "syn_log.start_logger()",
        ),
    ),
    Lines(
        Kind.ERROR,
        "distribute by hccl_py.integrations.tensorflow or Horovod's API",
        ("from habana_frameworks.tensorflow.distribute import HPUStrategy; HPUStrategy()",),
    ),
    Lines(
        Kind.ERROR,
        "use Keras' own",
        (
            "from habana_frameworks.tensorflow import HabanaEstimator; HabanaEstimator()",
            "from habana_frameworks.tensorflow import backward_compatible_optimizers as o; o.SGD",
            "from habana_frameworks.tensorflow.ops.instance_norm import "
            "HabanaInstanceNormalization; HabanaInstanceNormalization()",
        ),
    ),
    Lines(
        Kind.ERROR,
        "use tf.profiler",
        (
            "from habana_frameworks.tensorflow.synapse_logger_helpers import SynapseLoggerHook"
            "; SynapseLoggerHook()",
        ),
    ),
    Lines(
        Kind.ERROR,
        "use tf.data",
        (
            "from habana_frameworks.tensorflow.media import habana_imagenet_dataset"
            "; habana_imagenet_dataset()",
        ),
    ),
)
"""Run without TensorFlow too."""

WITH_TENSORFLOW = (
    Lines(
        Kind.SAME,
        "hccl-py's Horovod API, if Horovod is not installed",
        (
            "import horovod.tensorflow as hvd",
            "import horovod.tensorflow.keras as hvd",
            "import horovod.keras as hvd",
        ),
        "hvd.DistributedOptimizer.__module__.startswith('hccl_py')",
    ),
    Lines(
        Kind.SAME,
        "Keras' `LayerNormalization`",
        (
            "from habana_frameworks.tensorflow.ops.layer_norm import HabanaLayerNormalization"
            "; _ = HabanaLayerNormalization.__name__",
        ),
        "_ == 'LayerNormalization'",
    ),
)


def table() -> str:
    """Return the page's table: a row for what several lines mean."""
    rows = {Kind.SAME: [], Kind.NOTHING: [], Kind.ERROR: []}  # type: dict[Kind, list[str]]
    for each in (*TORCH, *TENSORFLOW, *WITH_TENSORFLOW):
        lines = ", ".join(f"`{line}`" for line in each.lines)
        means = f"error: {each.means}" if each.kind is Kind.ERROR else each.means
        rows[each.kind].append(f"| {means} | {lines} |\n")
    return "| on the CPU | lines |\n|---|---|\n" + "".join(sum(rows.values(), []))


if __name__ == "__main__":
    start, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(f"{start}{BEGIN}\n\n{table()}\n{END}{rest.split(END, maxsplit=1)[1]}")
