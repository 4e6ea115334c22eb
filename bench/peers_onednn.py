# SPDX-License-Identifier: MIT
"""Dense forwards by oneDNN's graph API, called through its C interface, for bench/peers_cpu.py and bench/run_cpu.py.

The graph is that of oneDNN's own example of scaled dot product attention: product, division by the square root of D, an
additive mask where the problem is causal (its fused kernel has no other form), softmax, product. Query heads that share a
key head are a dimension of their own. Where oneDNN does not take the whole graph as one partition, the problem is refused.

The library is the file that the environment variable ONEDNN_LIBRARY names. The kernel that is fast on processors needs
threads of OpenMP, and batch times heads more than twice their number:

    cmake -S oneDNN -B b -DCMAKE_BUILD_TYPE=Release -DONEDNN_CPU_RUNTIME=OMP && cmake --build b
    export ONEDNN_LIBRARY=$PWD/b/src/libdnnl.so
"""
import ctypes
import os
import sys

MAX_DIMS = 12
CPU, IN_ORDER, FUSION = 1, 1, 1  # an engine's kind, a stream's flags, a policy of partitions
STRIDED, UNDEFINED = 2, 0  # a layout, a property of tensors
DTYPES = {"f16": 1, "bf16": 2, "f32": 3}
# Kinds of operations and names of attributes as oneapi/dnnl/dnnl_graph_types.h of versions 3.x numbers them.
ADD, DIVIDE, MATMUL, SOFTMAX = 2, 20, 39, 64
AXIS, TRANSPOSE_B, MODE = 0x30, 0x66, 0x84


class LogicalTensor(ctypes.Structure):
    _fields_ = [("id", ctypes.c_size_t), ("ndims", ctypes.c_int), ("dims", ctypes.c_int64 * MAX_DIMS),
                ("data_type", ctypes.c_int), ("property", ctypes.c_int), ("layout_type", ctypes.c_int),
                ("strides", ctypes.c_int64 * MAX_DIMS)]


def available():
    return bool(os.environ.get("ONEDNN_LIBRARY"))


class Library:
    """The calls that are used, each checked."""

    def __init__(self):
        if not available():
            sys.exit("onednn: the environment variable ONEDNN_LIBRARY must name its library")
        self.dnnl = ctypes.CDLL(os.environ["ONEDNN_LIBRARY"])
        # The OpenMP runtime that it was linked with, by its own name: one that is loaded already is the same one.
        self.omp = ctypes.CDLL("libgomp.so.1")

    def __getattr__(self, name):
        function = getattr(self.dnnl, "dnnl_" + name)

        def call(*args):
            status = function(*args)
            if status:
                raise RuntimeError(f"dnnl_{name}: status {status}")

        return call

    def version(self):
        class Version(ctypes.Structure):
            _fields_ = [("major", ctypes.c_int), ("minor", ctypes.c_int), ("patch", ctypes.c_int), ("hash", ctypes.c_char_p)]

        self.dnnl.dnnl_version.restype = ctypes.POINTER(Version)
        v = self.dnnl.dnnl_version().contents
        return f"{v.major}.{v.minor}.{v.patch} {v.hash.decode()[:9]}"


class Sdpa:
    """One problem: its graph compiled, its tensors bound; call to run it. The arrays are kept, and `out` is the result."""

    def __init__(self, library, p, threads, query, key, value, scale, mask, out):
        self.library, self.tensors = library, {}
        library.omp.omp_set_num_threads(threads)
        self.engine, self.stream, graph = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        library.engine_create(ctypes.byref(self.engine), CPU, ctypes.c_size_t(0))
        library.stream_create(ctypes.byref(self.stream), self.engine, IN_ORDER)
        library.graph_graph_create(ctypes.byref(graph), CPU)
        self.graph, self.ops, self.threads = graph, 0, threads
        dtype = DTYPES[p["dtype"]]
        b, hq, hk, sq, sk, d, dv = (p[k] for k in ("b", "hq", "hk", "sq", "sk", "d", "dv"))
        heads, shared = ((b, hq), (b, hq)) if hq == hk else ((b, hk, hq // hk), (b, hk, 1))
        q, k, v = self.tensor(dtype, *heads, sq, d), self.tensor(dtype, *shared, sk, d), self.tensor(dtype, *shared, sk, dv)
        divisor = self.tensor(dtype, 1)
        scores = self.tensor(DTYPES["f32"], *heads, sq, sk)
        scaled = self.tensor(DTYPES["f32"], *heads, sq, sk)
        self.op(MATMUL, [q, k], scores, [(TRANSPOSE_B, True)])
        self.op(DIVIDE, [scores, divisor], scaled)
        bound = [(q, query), (k, key), (v, value), (divisor, scale)]
        if mask is not None:
            added = self.tensor(dtype, *[1] * len(heads), sq, sk)
            seen = self.tensor(DTYPES["f32"], *heads, sq, sk)
            self.op(ADD, [scaled, added], seen)
            bound.append((added, mask))
            scaled = seen
        probabilities, result = self.tensor(dtype, *heads, sq, sk), self.tensor(dtype, *heads, sq, dv)
        self.op(SOFTMAX, [scaled], probabilities, [(AXIS, -1), (MODE, b"inf_as_zero")])
        self.op(MATMUL, [probabilities, v], result)
        self.compile(bound, (result, out))

    def tensor(self, dtype, *dims):
        t = LogicalTensor()
        shape = (ctypes.c_int64 * MAX_DIMS)(*dims)
        self.library.graph_logical_tensor_init_with_dims(ctypes.byref(t), ctypes.c_size_t(len(self.tensors)), dtype, len(dims), shape,
                                                         STRIDED, UNDEFINED)
        self.tensors[t.id] = t
        return t

    def op(self, kind, inputs, output, attributes=()):
        op = ctypes.c_void_p()
        self.library.graph_op_create(ctypes.byref(op), ctypes.c_size_t(self.ops), kind, b"%d" % self.ops)
        self.ops += 1
        one = ctypes.c_size_t(1)
        for name, x in attributes:
            if isinstance(x, bool):
                self.library.graph_op_set_attr_bool(op, name, ctypes.byref(ctypes.c_uint8(x)), one)
            elif isinstance(x, int):
                self.library.graph_op_set_attr_s64(op, name, ctypes.byref(ctypes.c_int64(x)), one)
            else:
                self.library.graph_op_set_attr_str(op, name, x, ctypes.c_size_t(len(x)))
        for t in inputs:
            self.library.graph_op_add_input(op, ctypes.byref(t))
        self.library.graph_op_add_output(op, ctypes.byref(output))
        self.library.graph_add_op(self.graph, op)

    def compile(self, bound, result):
        lib, count, partition = self.library, ctypes.c_size_t(), ctypes.c_void_p()
        lib.graph_graph_finalize(self.graph)
        lib.graph_graph_filter(self.graph, FUSION)
        lib.graph_graph_get_partition_num(self.graph, ctypes.byref(count))
        if count.value != 1:
            raise RuntimeError(f"oneDNN makes {count.value} partitions of it, not one")
        lib.graph_graph_get_partitions(self.graph, count, ctypes.byref(partition))
        arrays = {t.id: array for t, array in bound}
        lib.graph_partition_get_input_ports_num(partition, ctypes.byref(count))
        ports = (LogicalTensor * count.value)()
        lib.graph_partition_get_input_ports(partition, count, ports)
        inputs = (ctypes.POINTER(LogicalTensor) * count.value)(*[ctypes.pointer(self.tensors[t.id]) for t in ports])
        outputs = (ctypes.POINTER(LogicalTensor) * 1)(ctypes.pointer(result[0]))
        self.compiled, one = ctypes.c_void_p(), ctypes.c_size_t(1)
        lib.graph_compiled_partition_create(ctypes.byref(self.compiled), partition)
        lib.graph_partition_compile(partition, self.compiled, count, inputs, one, outputs, self.engine)
        self.inputs = self.bind([(self.tensors[t.id], arrays[t.id]) for t in ports])
        self.outputs = self.bind([result])
        self.kept, self.out = [array for _, array in bound], result[1]

    def bind(self, pairs):
        tensors = (ctypes.c_void_p * len(pairs))()
        for i, (t, array) in enumerate(pairs):
            tensor = ctypes.c_void_p()
            self.library.graph_tensor_create(ctypes.byref(tensor), ctypes.byref(t), self.engine, ctypes.c_void_p(array.ctypes.data))
            tensors[i] = tensor
        return tensors

    def __call__(self):
        lib = self.library
        lib.omp.omp_set_num_threads(self.threads)  # others in this process have their own wishes
        lib.graph_compiled_partition_execute(self.compiled, self.stream, ctypes.c_size_t(len(self.inputs)), self.inputs,
                                             ctypes.c_size_t(1), self.outputs)
        lib.stream_wait(self.stream)


def bits_of(x, dtype):
    """float32 numbers as numbers of `dtype`, in NumPy, which has no bf16: round to nearest even, 16 bits an element."""
    import numpy as np

    if dtype != "bf16":
        return np.ascontiguousarray(x, np.float16 if dtype == "f16" else np.float32)
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def make(p, threads, tensor):
    """The problem as a call. `tensor(*shape)` makes random numbers in float32."""
    import numpy as np

    b, hq, hk, sq, sk, d, dv = (p[k] for k in ("b", "hq", "hk", "sq", "sk", "d", "dv"))
    query, key, value, out = (bits_of(tensor(*s), p["dtype"])
                              for s in ((b, hq, sq, d), (b, hk, sk, d), (b, hk, sk, dv), (b, hq, sq, dv)))
    mask = None
    if p["causal"]:  # query i sees the keys up to i
        mask = bits_of(np.where(np.arange(sk)[None, :] > np.arange(sq)[:, None], -np.inf, 0), p["dtype"])
    scale = bits_of(np.array([d ** 0.5]), p["dtype"])
    return Sdpa(Library(), p, threads, query, key, value, scale, mask, out)
