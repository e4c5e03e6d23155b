"""libmonolayer from Python, through ctypes alone.

Tensors are anything that speaks DLPack (PyTorch, NumPy, ...): the library sees their memory, nothing
is copied. NumPy has no bfloat16 and no 4- or 8-bit floats, so such tensors are uint16 or uint8 arrays
and `dtype` says what they hold. Structs are those of monolayer.h.
"""
import ctypes as c
import os

ABI_VERSION = 1
OK, INVALID_ARGUMENT, UNSUPPORTED, FAILED_PRECONDITION = 0, 1, 2, 3
F32, BF16, E4M3, E2M1X2, E8M0, I32, I64 = 1, 2, 3, 4, 5, 6, 7
ROWS, PAGES = 1, 2
CPU = 1


class Tensor(c.Structure):
    _fields_ = [("size", c.c_uint32), ("dtype", c.c_int32), ("layout", c.c_int32),
                ("device_type", c.c_int32), ("device_index", c.c_int32), ("rank", c.c_int32),
                ("data", c.c_void_p), ("shape", c.c_int64 * 4), ("strides", c.c_int64 * 4)]


class Matrix(c.Structure):
    _fields_ = [("size", c.c_uint32), ("reserved", c.c_uint32), ("weight", Tensor),
                ("scale", Tensor)]


class Mlp(c.Structure):
    _fields_ = [("size", c.c_uint32), ("reserved", c.c_uint32), ("gate", Matrix), ("up", Matrix),
                ("down", Matrix)]


def _ints(names):
    return [(name, c.c_int32) for name in names.split()]


class Model(c.Structure):
    _fields_ = [("size", c.c_uint32), *_ints(
        "num_layers hidden_size num_heads num_kv_heads head_dim rotary_dim index_heads index_dim "
        "block_size topk_blocks init_blocks local_blocks num_experts experts_per_token "
        "expert_width shared_width max_positions"), ("rope_theta", c.c_double),
        *[(name, c.c_float) for name in
          ("rms_eps", "routed_scale", "swiglu_alpha", "swiglu_limit", "swiglu_beta",
           "shared_weight", "softmax_scale")], ("cos_sin", Tensor)]


class LayerSpec(c.Structure):
    _fields_ = [("size", c.c_uint32), ("layer_id", c.c_int32),
                *[(name, Tensor) for name in
                  ("input_norm", "post_norm", "q_norm", "k_norm", "index_q_norm", "index_k_norm")],
                *[(name, Matrix) for name in ("q", "k", "v", "index_q", "index_k", "o", "router")],
                ("router_bias", Tensor), ("stacked", Mlp), ("experts", c.POINTER(Mlp)),
                ("expert_count", c.c_int64), ("shared", Mlp)]


class CacheSpec(c.Structure):
    _fields_ = [("size", c.c_uint32), ("layer_id", c.c_int32), ("k", Tensor), ("v", Tensor),
                ("index", Tensor), ("k_scale", c.c_float), ("v_scale", c.c_float),
                ("index_scale", c.c_float), ("max_context", c.c_int64)]


class TpContext(c.Structure):
    _fields_ = [("size", c.c_uint32), *_ints("rank tp_size device_type device_index worker_threads"),
                ("group", c.c_void_p)]


class Step(c.Structure):
    _fields_ = [("size", c.c_uint32), ("flags", c.c_uint32), *_ints(
        "token_count requests query_len table_width index_table_width reserved"),
        *[(name, c.c_void_p) for name in ("query_lens", "main_table", "index_table", "seq_lens",
                                          "main_slots", "index_slots", "stream")]]


def make(kind, **fields):
    """A struct with its size set and the rest zero, nested structs too."""
    value = kind()
    _set_sizes(value)
    for name, field in fields.items():
        setattr(value, name, field)
    return value


def _set_sizes(value):
    value.size = c.sizeof(value)
    for name, kind in value._fields_:
        if isinstance(kind, type) and issubclass(kind, c.Structure):
            _set_sizes(getattr(value, name))


class _DLTensor(c.Structure):
    _fields_ = [("data", c.c_void_p), ("device_type", c.c_int32), ("device_index", c.c_int32),
                ("rank", c.c_int32), ("code", c.c_uint8), ("bits", c.c_uint8),
                ("lanes", c.c_uint16), ("shape", c.POINTER(c.c_int64)),
                ("strides", c.POINTER(c.c_int64)), ("byte_offset", c.c_uint64)]


_capsule_pointer = c.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = c.c_void_p
_capsule_pointer.argtypes = [c.py_object, c.c_char_p]
_DLPACK_TYPES = {(2, 32): F32, (4, 16): BF16, (0, 32): I32, (0, 64): I64}


def tensor(source, dtype=None, layout=ROWS):
    """A view of a DLPack tensor. Keep `source` alive as long as the library borrows it."""
    capsule = source.__dlpack__()
    dl = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    if dl.rank > 4 or dl.lanes != 1:
        raise ValueError(f"rank {dl.rank} with {dl.lanes} lanes, at most 4 and 1")
    if dtype is None:
        dtype = _DLPACK_TYPES.get((dl.code, dl.bits))
        if dtype is None:
            raise ValueError(f"say what {dl.bits}-bit elements of DLPack type {dl.code} hold")
    view = make(Tensor, dtype=dtype, layout=layout, device_type=dl.device_type,
                device_index=dl.device_index, rank=dl.rank, data=(dl.data or 0) + dl.byte_offset)
    expected = 1
    for axis in reversed(range(dl.rank)):
        view.shape[axis] = dl.shape[axis]
        view.strides[axis] = dl.strides[axis] if dl.strides else expected
        expected *= dl.shape[axis]
    return view


def matrix(weight, scale=None):
    value = make(Matrix, weight=weight)
    if scale is not None:
        value.scale = scale
    return value


class Error(Exception):
    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


class Library:
    """The shared library: `path`, $MONOLAYER_LIBRARY, or what the loader finds."""

    def __init__(self, path=None):
        self.lib = c.CDLL(path or os.environ.get("MONOLAYER_LIBRARY") or "libmonolayer.so.0")
        lib, p = self.lib, c.c_void_p
        lib.ml_last_error.restype = c.c_char_p
        lib.ml_version.restype = c.c_char_p
        lib.ml_mono_create.argtypes = [c.c_uint32, p, p, c.c_int32, p, c.c_int32, p, p]
        lib.ml_mono_prepare_step.argtypes = [p, p]
        lib.ml_mono_forward_layers.argtypes = [p, c.c_int32, c.c_int32, p, p, p, p, p]
        lib.ml_mono_close.argtypes = [p]
        lib.ml_mono_destroy.argtypes = [p]
        lib.ml_repack.argtypes = [p, p]
        if lib.ml_abi_version() != ABI_VERSION:
            raise Error(INVALID_ARGUMENT, f"library has ABI {lib.ml_abi_version()}")

    def check(self, code):
        if code != OK:
            raise Error(code, self.lib.ml_last_error().decode(errors="replace"))

    def repack(self, source, target):
        self.check(self.lib.ml_repack(c.byref(source), c.byref(target)))


class Mono:
    """The fused path of one rank. `close` (collective) when done, or use it in a `with`."""

    def __init__(self, library, model, layers, caches, context):
        self.library, self.handle = library, c.c_void_p()
        layer_array = (LayerSpec * len(layers))(*layers)
        cache_array = (CacheSpec * len(caches))(*caches)
        library.check(library.lib.ml_mono_create(
            ABI_VERSION, c.byref(model), layer_array, len(layers), cache_array, len(caches),
            c.byref(context), c.byref(self.handle)))

    def prepare_step(self, step):
        self.library.check(self.library.lib.ml_mono_prepare_step(self.handle, c.byref(step)))

    def forward_layers(self, first, count, hidden, residual, positions):
        """Views of the library's memory, overwritten by the call after the next."""
        hidden_out, residual_out = Tensor(), Tensor()
        self.library.check(self.library.lib.ml_mono_forward_layers(
            self.handle, first, count, c.byref(hidden), c.byref(residual), c.byref(positions),
            c.byref(hidden_out), c.byref(residual_out)))
        return hidden_out, residual_out

    def close(self):
        self.library.check(self.library.lib.ml_mono_close(self.handle))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
        self.library.lib.ml_mono_destroy(self.handle)
        self.handle = None
