"""entrain: your own gradient under any strategy, on as many simulated workers as you like, in virtual time.

    import entrain
    run = entrain.simulate(grad, w0, workers=64, strategy="ssp:bound=3", steps=1000, lr=0.1, compute="lognormal:10ms,0.5")
    run.weights, run.seconds, run.staleness_mean, run.curve

It needs numpy and libentrain.so: the one that $ENTRAIN_LIBRARY names, else that of the wheel, checkout or prefix of this file,
or the system's. docs/virtual-time.md explains it by examples.
"""
import contextlib
import ctypes
import ctypes.util
import functools
import os
import pathlib
import sys
import threading

import numpy as np

__all__ = ["Rank", "RefusedError", "RunError", "Simulation", "setting", "simulate"]

_TYPES = {"i32": ctypes.c_int32, "u32": ctypes.c_uint32, "i64": ctypes.c_int64, "u64": ctypes.c_uint64, "f32": ctypes.c_float,
          "f64": ctypes.c_double, "text": ctypes.c_char_p, "at": ctypes.c_void_p}
_TYPES.update({f"*{name}": ctypes.POINTER(type) for name, type in _TYPES.items()})


class RefusedError(ValueError):
    """A setting, or a wrong call: what it is, where, and what to do. A program that nobody keeps from ending by it exits with 2."""


def _need(is_so, otherwise):
    if not is_so:
        raise RefusedError(otherwise)


def _struct(fields, **others):
    """A struct of C: "type name name; type name". `others` have types of their own; *type is a pointer."""
    listed = [(name, type) for type, *names in map(str.split, fields.split(";")) for name in names]
    return type("Struct", (ctypes.Structure,), {"_fields_": [(name, others.get(name) or _TYPES[type]) for name, type in listed]})


_Grad = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int32, ctypes.c_uint64, _TYPES["*f32"], _TYPES["*f32"])
_Eval = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int64, _TYPES["*f32"])
_Log = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p)
_Problem = _struct("u32 abi size; u64 count; *f32 init; u64 samples; *u64 tensors; u32 ntensors; call grad eval; u64 eval_every; "
                   "at user", grad=_Grad, eval=_Eval)
_Options = _struct("u32 size; text plugins; call log; at log_user", log=_Log)
_Result = _struct("u32 size; i32 nranks; *f32 weights; hash weights_sha256 log_sha256; i64 virtual_ns; u64 events updates samples "
                  "pushes holds applied dropped sent received; *u64 rank_steps rank_samples staleness; u64 nstaleness; f64 "
                  "staleness_mean theory_staleness theory_sent theory_received; i32 has_equal_ranks",
                  weights_sha256=ctypes.c_char * 65, log_sha256=ctypes.c_char * 65)


def _places():
    parents = list(pathlib.Path(__file__).resolve().parents)
    yield from [top / "build" / "libentrain.so" for top in parents[2:3]]  # a checkout
    for prefix in parents[:1] + parents[4:6]:  # a wheel; share/doc/entrain/python/entrain of `make install`, or a site-packages
        yield from [*prefix.glob("lib*/libentrain.so.0"), *prefix.glob("lib/*/libentrain.so.0")]
    yield ctypes.util.find_library("entrain")


@functools.lru_cache(None)
def _library():
    named, causes = os.environ.get("ENTRAIN_LIBRARY"), []
    for name in [named] if named else filter(None, _places()):
        try:
            library = ctypes.CDLL(str(name))
        except OSError as cause:
            causes.append(str(cause))
            continue
        library.en_sim_result_of.restype = ctypes.POINTER(_Result)
        return library
    raise ImportError("libentrain.so was not found: build it with make, or name it in the variable ENTRAIN_LIBRARY"
                      f" ({'; '.join(causes)})")


_said, _rank = threading.local(), lambda: None  # the Rank of this process, if it is still there


@_Log  # kept in the module: the library keeps its address
def _log(user, level, subsystem, text):
    if level == 0:  # becomes an exception of the thread whose run has failed
        _said.text = text.decode(errors="replace")


@contextlib.contextmanager
def _hearing(raised):
    """Takes what a handler, such as Ctrl-C's, raises in a callback before its `try`, and ctypes would drop."""
    def take(unraisable):
        raised.append(unraisable.exc_value) if "ctypes callback" in (unraisable.err_msg or "") else before(unraisable)

    before, is_main = sys.unraisablehook, threading.current_thread() is threading.main_thread()  # where Python calls handlers
    if is_main:
        sys.unraisablehook = take
    try:
        yield
    finally:
        if is_main:
            sys.unraisablehook = before


def _guarded(call, raised, otherwise=1, tell=lambda error: None):
    """A callback. What it raises is kept: the call that asked raises it again."""
    def callback(user, *arguments):
        try:
            return otherwise if raised else call(*arguments) or 0
        except BaseException as error:  # KeyboardInterrupt too: the library knows nothing of it
            raised.append(error)
            tell(error)
            return otherwise
    return callback


class Simulation:
    """What a run came to.

    weights       float32 array: the model that the strategy's paper evaluates
    curve         list of (samples, virtual seconds, what eval returned)
    seconds       virtual time of the whole run
    staleness     array: how many pushes had staleness 0, 1, ..; staleness_mean; theory_staleness (nan: no promise)
    rank_steps, rank_samples            arrays by rank; equal_ranks: all ranks end with the same bytes
    samples, applied, dropped           computed; that a server applied, and did not
    sent, received                      bytes of gradients and weights, of all ranks
    events, updates, pushes, holds      counts; weights_sha256, log_sha256: equal hashes, equal runs
    """

    def __init__(self, result, count, curve):
        self.curve, self.seconds, self.equal_ranks = curve, result.virtual_ns * 1e-9, bool(result.has_equal_ranks)
        for name, *_ in _Result._fields_[3:]:  # numbers, hashes
            value = getattr(result, name)
            setattr(self, name, value.decode() if isinstance(value, bytes) else value)
        self.weights = np.ctypeslib.as_array(result.weights, (count,)).copy()
        for name, n in (("staleness", result.nstaleness), ("rank_steps", result.nranks), ("rank_samples", result.nranks)):
            setattr(self, name, np.array(getattr(result, name)[:n], np.uint64))


def _texts(settings):
    """{"bucket_cap": 4096} -> ["bucket-cap=4096"], and the number; True is on; a list gives a setting several times."""
    texts = []
    for key, value in settings.items():
        for one in value if isinstance(value, (list, tuple)) else [value]:
            texts.append(f"{key.replace('_', '-')}={('off', 'on')[one] if isinstance(one, bool) else one}".encode())
    return (ctypes.c_char_p * len(texts))(*texts), ctypes.c_size_t(len(texts))


def simulate(grad, init, *, workers=4, strategy="ring", steps=100, batch_size=1, tensors=None, eval=None, eval_every=0, **settings):
    """Runs `strategy` on `workers` simulated workers and returns a Simulation.

    grad(param, micro_batch, rank)   the gradient of the mean loss over a micro-batch, as an array of init's size; it must
                                     depend on (param, micro_batch) alone. param is a read-only copy
    init                             initial weights, flattened to one vector of float32
    steps                            of all workers: steps x workers micro-batches are computed, each of batch_size samples
    tensors                          sizes of the parameters, in order: buckets end at their edges
    eval(param)                      called at the start, after each eval_every samples, and at the end: Simulation.curve
    settings                         flags of `entrain sim`: lr, momentum, optimizer, seed, compute, straggler, net, bucket_cap ..

    An exception in a callback ends the run and is raised. RefusedError: a setting; its text names the nearest one.
    """
    library, w0 = _library(), np.ascontiguousarray(init, np.float32).ravel()
    count, raised, curve = w0.size, [], []

    def view(pointer):
        return np.ctypeslib.as_array(pointer, (count,))

    def compute(rank, micro_batch, param, out):
        seen = view(param).copy()  # may be kept
        seen.flags.writeable = False
        g = np.asarray(grad(seen, micro_batch, rank), np.float32).ravel()
        _need(g.size == count, f"grad returned {g.size} elements for {count} weights")
        view(out)[:] = g

    def evaluate(samples, virtual_ns, param):
        curve.append((samples, virtual_ns * 1e-9, eval(view(param).copy())))

    sizes = (ctypes.c_uint64 * len(tensors))(*tensors) if tensors is not None else None
    problem = _Problem(abi=1, size=ctypes.sizeof(_Problem), count=count, init=w0.ctypes.data_as(_TYPES["*f32"]), samples=batch_size,
                       tensors=sizes, ntensors=len(sizes or ()), grad=_Grad(_guarded(compute, raised)),
                       eval=_Eval(_guarded(evaluate, raised)) if eval else _Eval(), eval_every=eval_every)
    options = _Options(size=ctypes.sizeof(_Options), plugins=os.environb.get(b"ENTRAIN_PLUGIN_PATH") or None, log=_log)
    texts, sim = _texts(dict(settings, workers=workers, strategy=strategy, steps=steps)), ctypes.c_void_p()
    if library.en_sim_open(ctypes.byref(problem), *texts, ctypes.byref(options), ctypes.byref(sim)):
        raise RefusedError(getattr(_said, "text", "out of memory"))
    try:
        with _hearing(raised):
            status = library.en_sim_run(sim)
        if raised:
            raise raised[0]
        if status:
            raise RuntimeError(getattr(_said, "text", "out of memory"))
        return Simulation(library.en_sim_result_of(sim).contents, count, curve)
    finally:
        library.en_sim_close(sim)


from entrain.rank import Rank, RunError, setting  # noqa: E402  which uses the above
