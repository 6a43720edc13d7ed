"""entrain: your own gradient under any strategy, on as many simulated workers as you like, in virtual time.

    import entrain
    run = entrain.simulate(grad, w0, workers=64, strategy="ssp:bound=3", steps=1000, lr=0.1, compute="lognormal:10ms,0.5")
    run.weights, run.seconds, run.staleness_mean, run.curve

grad(param, micro_batch, rank) returns the gradient of the mean loss over that micro-batch; numpy alone is needed, and
libentrain.so: the one that $ENTRAIN_LIBRARY names, else that of the wheel, checkout or prefix of this file, or the system's.
docs/virtual-time.md explains it by examples.
"""
import ctypes
import ctypes.util
import os
import pathlib
import signal
import threading

import numpy as np

__all__ = ["Rank", "RunError", "Simulation", "setting", "simulate"]

_TYPES = {"i32": ctypes.c_int32, "u32": ctypes.c_uint32, "i64": ctypes.c_int64, "u64": ctypes.c_uint64, "f32": ctypes.c_float,
          "f64": ctypes.c_double, "text": ctypes.c_char_p, "at": ctypes.c_void_p}
_TYPES.update({f"*{name}": ctypes.POINTER(type) for name, type in _TYPES.items()})


def _need(is_so, otherwise):
    if not is_so:
        raise ValueError(otherwise)


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


def _load():
    named, causes = os.environ.get("ENTRAIN_LIBRARY"), []
    for name in [named] if named else filter(None, _places()):
        try:
            library = ctypes.CDLL(str(name))
        except OSError as cause:
            causes.append(str(cause))
            continue
        library.en_sim_result_of.restype = ctypes.POINTER(_Result)
        library.en_sim_result_of.argtypes = library.en_sim_run.argtypes = library.en_sim_close.argtypes = [ctypes.c_void_p]
        library.en_sim_close.restype = None
        return library
    raise ImportError("libentrain.so was not found: build it with make, or name it in the variable ENTRAIN_LIBRARY"
                      f" ({'; '.join(causes)})")


_library, _said, _rank = None, threading.local(), lambda: None  # the Rank of this process, if it is still there


@_Log  # kept in the module: the library keeps its address
def _log(user, level, subsystem, text):
    if level == 0:  # becomes an exception of the thread whose run has failed
        _said.text = text.decode(errors="replace")


class _Signals:
    """Handlers that raise, such as Ctrl-C's, during a run. Python calls a handler at the next bytecode: of a callback, before its
    `try`, from where ctypes drops what is raised. There it is noted, and called within the `try`."""

    def __init__(self):
        self.handlers, self.noted, self.may_raise = {}, [], False

    def __enter__(self):
        if threading.current_thread() is threading.main_thread():  # where Python calls them
            self.handlers = {n: handler for n in signal.valid_signals() if callable(handler := signal.getsignal(n))}
            for number in self.handlers:
                signal.signal(number, self.handle)
        return self

    def __exit__(self, *error):
        for number, handler in self.handlers.items():
            signal.signal(number, handler)
        self.call_noted()

    def handle(self, number, frame):
        self.noted.append((number, frame))
        if self.may_raise:
            self.call_noted()

    def call_noted(self):
        while self.noted:
            number, frame = self.noted.pop(0)
            self.handlers[number](number, frame)


class Simulation:
    """What a run came to.

    weights       float32 array: the model that the strategy's paper evaluates
    curve         list of (samples, virtual seconds, what eval returned)
    seconds       virtual time of the whole run
    staleness     array: how many pushes had staleness 0, 1, ..; staleness_mean; theory_staleness (nan: no promise)
    rank_steps, rank_samples                          arrays by rank
    samples, applied, dropped                         computed; that a server applied, and did not
    sent, received                                    bytes of gradients and weights, of all ranks
    events, updates, pushes, holds, equal_ranks       counts; whether all ranks end with the same bytes
    weights_sha256, log_sha256                        equal hashes: equal runs
    """

    def __init__(self, result, count, curve):
        self.curve = curve
        self.weights = np.ctypeslib.as_array(result.weights, (count,)).copy()
        self.seconds = result.virtual_ns * 1e-9
        n = result.nstaleness  # 0: a null pointer
        self.staleness = np.ctypeslib.as_array(result.staleness, (n,)).copy() if n > 0 else np.zeros(0, np.uint64)
        self.rank_steps = np.ctypeslib.as_array(result.rank_steps, (result.nranks,)).copy()
        self.rank_samples = np.ctypeslib.as_array(result.rank_samples, (result.nranks,)).copy()
        self.equal_ranks = bool(result.has_equal_ranks)
        self.weights_sha256, self.log_sha256 = result.weights_sha256.decode(), result.log_sha256.decode()
        for name in ("events", "updates", "samples", "pushes", "holds", "applied", "dropped", "sent", "received",
                     "staleness_mean", "theory_staleness", "theory_sent", "theory_received"):
            setattr(self, name, getattr(result, name))


def _texts(settings):
    """{"bucket_cap": 4096} -> ["bucket-cap=4096"]; True and False become on and off; a list gives a setting several times."""
    for key, value in settings.items():
        for one in value if isinstance(value, (list, tuple)) else [value]:
            text = {True: "on", False: "off"}.get(one, one) if isinstance(one, bool) else one
            yield f"{key.replace('_', '-')}={text}"


def simulate(grad, init, *, workers=4, strategy="ring", steps=100, batch_size=1, tensors=None, eval=None, eval_every=0, **settings):
    """Runs `strategy` on `workers` simulated workers and returns a Simulation.

    grad(param, micro_batch, rank)   the gradient of the mean loss over a micro-batch, as an array of init's size; it must
                                     depend on (param, micro_batch) alone. param is a read-only copy
    init                             initial weights, flattened to one vector of float32
    steps                            of all workers: steps x workers micro-batches are computed
    batch_size                       samples of a micro-batch
    tensors                          sizes of the parameters, in order: buckets end at their edges
    eval(param)                      called at the start, after each eval_every samples, and at the end: Simulation.curve
    settings                         flags of `entrain sim`: lr, momentum, optimizer, seed, compute, straggler, net, bucket_cap ..

    An exception in a callback ends the run and is raised. ValueError: a setting; its text names the nearest one.
    """
    global _library
    _library = _library or _load()
    w0 = np.ascontiguousarray(init, np.float32).ravel()
    count, raised, curve, signals = w0.size, [], [], _Signals()
    as_floats = ctypes.POINTER(ctypes.c_float)

    def guarded(call):
        def callback(*arguments):
            try:
                signals.may_raise = True
                signals.call_noted()
                call(*arguments)
                signals.may_raise = False
                return 0
            except BaseException as error:  # KeyboardInterrupt too: the library knows nothing of it
                signals.may_raise = False
                raised.append(error)
                return 1
        return callback

    def view(pointer):
        return np.ctypeslib.as_array(pointer, (count,))

    def compute(user, rank, micro_batch, param, out):
        seen = view(param).copy()  # may be kept
        seen.flags.writeable = False
        g = np.asarray(grad(seen, micro_batch, rank), np.float32).ravel()
        _need(g.size == count, f"grad returned {g.size} elements for {count} weights")
        view(out)[:] = g

    def evaluate(user, samples, virtual_ns, param):
        curve.append((samples, virtual_ns * 1e-9, eval(view(param).copy())))

    sizes = (ctypes.c_uint64 * len(tensors))(*tensors) if tensors is not None else None
    problem = _Problem(abi=1, size=ctypes.sizeof(_Problem), count=count, init=w0.ctypes.data_as(as_floats), samples=batch_size,
                       tensors=sizes, ntensors=len(tensors) if tensors is not None else 0,
                       grad=_Grad(guarded(compute)), eval=_Eval(guarded(evaluate)) if eval else _Eval(),
                       eval_every=eval_every)
    plugins = os.environ.get("ENTRAIN_PLUGIN_PATH")
    options = _Options(size=ctypes.sizeof(_Options), plugins=os.fsencode(plugins) if plugins else None, log=_log)
    texts = [text.encode() for text in _texts(dict(settings, workers=workers, strategy=strategy, steps=steps))]
    sim = ctypes.c_void_p()
    if _library.en_sim_open(ctypes.byref(problem), (ctypes.c_char_p * len(texts))(*texts), ctypes.c_size_t(len(texts)),
                            ctypes.byref(options), ctypes.byref(sim)):
        raise ValueError(getattr(_said, "text", "out of memory"))
    try:
        with signals:
            status = _library.en_sim_run(sim)
        if raised:
            raise raised[0]
        if status:
            raise RuntimeError(getattr(_said, "text", "out of memory"))
        return Simulation(_library.en_sim_result_of(sim).contents, count, curve)
    finally:
        _library.en_sim_close(sim)


from entrain.rank import Rank, RunError, setting  # noqa: E402  which uses the above
