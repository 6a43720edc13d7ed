"""entrain.Rank: a program of your own as one rank of a run, on numpy (docs/rank.md)."""
import atexit
import configparser
import contextlib
import ctypes
import functools
import math
import os
import signal
import socket
import sys
import threading
import weakref

import numpy as np

import entrain
from entrain import RefusedError, _guarded, _need, _struct

_OK, _ESTOP, _INVALID = 0, 12, {1, 4, 13}  # EN_EINVAL, EN_ENOENT, EN_EMISMATCH
_MEMORY_TYPES = {name: i for i, name in enumerate(
    "float32 bfloat16 float16 int32 uint8 int64 float64 bool int8 int16 uint16 uint32 uint64".split(), 1)}  # all others as bytes

_Rates, _dims = _struct("f32 lr_factor weight_decay"), dict(shape=ctypes.c_uint64 * 8, order=ctypes.c_uint8 * 8)
_Tensor = _struct("u32 size reserved; text name; dims shape; at initial rates; dims order", rates=ctypes.POINTER(_Rates), **_dims)
_Memory = _struct("u32 size flags dtype reserved; text name; dims shape; at data; dims order", **_dims)
_Score = _struct("u32 size reserved; f64 loss accuracy")
_Evaluate = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(_Score))
_Schedule = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64)
_Step = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32)
_Options = _struct("u32 abi size flags ntensors; at tensors; u64 train_samples; text model data data_sha256 computes plugins; "
                   "call evaluate; at log user; u32 nmemories reserved; at memories; text program; call schedule step",
                   tensors=ctypes.POINTER(_Tensor), evaluate=_Evaluate, memories=ctypes.POINTER(_Memory), schedule=_Schedule,
                   step=_Step)
_Facts = _struct("u32 size; i32 rank nranks local_rank nlocal is_claiming; u64 seed batch global_batch samples steps first_step; "
                 "f64 lr; text strategy strategy_options out")
_Batch = _struct("u64 number epoch count; *u32 samples")


def _order(array):
    """The dimensions from the outermost to the innermost, and whether the elements lie in that order without a gap."""
    order = sorted(range(array.ndim), key=lambda d: -array.strides[d])
    return order, array.transpose(order).flags.c_contiguous


def _view(address, shape, strides, handle=None):
    memory = (ctypes.c_float * math.prod(shape)).from_address(address)
    memory.handle = handle
    return np.ndarray(shape, np.float32, memory, 0, strides)


def _copy(array):
    return np.ndarray(array.shape, array.dtype, array.flatten("K"), 0, array.strides)


def _described(struct, name, array, last=(), **others):
    shape, order = (*array.shape, *last), (*_order(array)[0], *[array.ndim][:len(last)])
    _need(len(shape) <= 8 and 0 not in shape, f"{name} has shape {shape}: give fewer dimensions than 9, and an element")
    return struct(size=ctypes.sizeof(struct), name=name.encode(), shape=shape, order=order, **others)


def _memory(name, array, flags):
    """The library reads and writes the array, where it lies."""
    _need(isinstance(array, np.ndarray) and _order(array)[1] and array.flags.writeable,
          f"memory {name}: give a writable numpy array that is contiguous")
    _need(not array.dtype.hasobject, f"memory {name} of {array.dtype} has Python objects: give numbers or bytes")
    is_finite = array.dtype != np.float32 or np.isfinite(array).all()  # a mask of -inf is no number to average
    name_of_type = (array.dtype.metadata or {}).get("type", array.dtype.name)
    type = _MEMORY_TYPES.get(name_of_type) if is_finite and array.dtype.isnative else None
    return _described(_Memory, name, array, () if type or array.itemsize == 1 else (array.itemsize,), flags=flags,
                      dtype=type or _MEMORY_TYPES["uint8"], data=array.ctypes.data)


def setting(name, default=None):
    """VALUE of `entrain run --set.NAME=VALUE .. -- python3 train.py`, or of an arm of `entrain compare`, as default's type; else
    default. Call it before Rank(), since the tensors may depend on it."""
    text = ctypes.create_string_buffer(4096)
    if entrain._library().en_rank_setting(name.encode(), text, ctypes.c_size_t(len(text))) < 0:
        return default
    text = text.value.decode()
    if isinstance(default, bool):
        words = configparser.ConfigParser.BOOLEAN_STATES
        _need(text.lower() in words, f"--set.{name}: \"{text}\" is neither on nor off")
        return words[text.lower()]
    try:
        return text if default is None else type(default)(text)
    except ValueError as cause:
        raise RefusedError(f"--set.{name}: {cause}") from None


class RunError(RuntimeError):
    """The run has failed: a peer died, training diverged, .. `status` is that of include/entrain/status.h."""

    def __init__(self, text, status):
        super().__init__(text)
        self.status = status


class _Handle(ctypes.c_void_p):
    """An open rank. All arrays on its memory refer to it, so it is closed when the last one is gone."""

    def __del__(self):
        self.library.en_rank_close(self)


def _show(shows, kind, error, trace):
    """Tells the other ranks of an uncaught exception. A RefusedError ends the program with 2, as it ends a command."""
    if entrain._rank():
        entrain._rank()._abort(error)
    shows(kind, error, trace)
    if isinstance(error, RefusedError):
        sys.exit(2)


@atexit.register
def _forgotten():
    rank = entrain._rank()
    if (rank and rank._handle and not rank._has_left and os.getpid() == rank._process
            and rank._library.en_rank_status(rank._handle) == _OK):  # else the program has been told
        _show(sys.excepthook, RuntimeError, RuntimeError("the program ended without rank.end()"), None)


def _hear_exceptions():
    """Also those that another hook, set since, would keep from us."""
    if getattr(sys.excepthook, "func", None) is not _show:
        sys.excepthook = functools.partial(_show, sys.excepthook)


_hear_exceptions()


class _Interrupts:
    """Ctrl-C and SIGTERM while the main thread waits inside the library, where Python calls no handler: a thread hears of them.
    The first asks for an early end in good order; a second one gives up, and raises KeyboardInterrupt."""

    def __init__(self, handle):
        self.handle, self.before, self.count = handle, {}, 0
        if threading.current_thread() is not threading.main_thread():  # where Python has handlers
            return
        self.ear, self.mouth = socket.socketpair()
        self.mouth.setblocking(False)
        self.before = {number: signal.signal(number, self.note) for number in (signal.SIGINT, signal.SIGTERM)}
        self.wakeup = signal.set_wakeup_fd(self.mouth.fileno(), warn_on_full_buffer=False)
        self.thread = threading.Thread(target=self.hear, daemon=True)
        self.thread.start()
        weak = weakref.ref(self)  # a hook of fork cannot be taken back
        os.register_at_fork(before=lambda: weak() and weak().hold(), after_in_parent=lambda: weak() and weak().release(),
                            after_in_child=lambda: weak() and (weak().leave(), weak().release()))

    def note(self, number, frame):
        self.count += 1
        if self.count > 1:
            raise KeyboardInterrupt

    def hear(self):
        heard, library, pointer = 0, self.handle.library, self.handle
        while byte := self.ear.recv(1):
            heard += byte[0] in self.before
            if heard == 1:
                library.en_rank_stop(pointer, signal.Signals(byte[0]).name.encode())
            elif heard > 1:
                library.en_rank_abort(pointer, b"interrupted twice")

    # A signal to a child made by fork is not this run's: a Pool ends its workers by SIGTERM. None may come in between.

    def hold(self):
        self.mask = signal.pthread_sigmask(signal.SIG_BLOCK, self.before)

    def release(self):
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)

    def leave(self):
        if self.before:
            signal.set_wakeup_fd(self.wakeup)
        for number, handler in self.before.items():
            signal.signal(number, handler or signal.SIG_DFL)  # None: it was not Python's
        self.before = {}

    def end(self):
        if not self.before:
            return
        self.leave()
        self.mouth.shutdown(socket.SHUT_WR)  # ends the thread; a close would not while a child has a copy
        self.mouth.close()
        self.thread.join()
        self.ear.close()


class Rank(contextlib.AbstractContextManager):
    """One rank of a run, as docs/rank.md explains. Settings are those of `entrain worker`: strategy="ssp:bound=3", lr=0.1 ..

    tensors          {name: initial values}, in the order of forward; rank 0's values count. weights and gradients keep the
                     order of dimensions in which an array lies
    train_samples    batches are indices below it
    memories         {name: array} that belong to a checkpoint; rank 0's count. own_memories: each rank has its own
    rates            {name: (factor of lr, weight_decay)} of tensors that have their own
    evaluate         called with {name: array} on rank 0; returns loss, or (loss, accuracy) with has_accuracy
    schedule         schedule(step, epoch): the factor of lr in this step, from these alone
    reads_weights    the program never writes to rank.weights: the ranks of a host may then share one copy
    steps_itself     the program's own optimizer (ring, solo): after finish() the gradients are the mean over all ranks
    step             step(names): the same inside ready() and finish(), of these tensors; also under strategies with local steps
    environment      whether variables of torchrun, Slurm and MPI are read
    weights, gradients   {name: float32 array}, at the same addresses for the whole run
    about                rank, nranks, steps, samples, batch, lr, strategy ..

    RefusedError: a setting, or a wrong call. RunError: the run has failed, on all ranks.
    """

    def __init__(self, tensors, train_samples, *, memories={}, own_memories={}, rates={}, evaluate=None, has_accuracy=False,
                 schedule=None, reads_weights=False, steps_itself=False, step=None, environment=True, model="program", data="data",
                 data_sha256=None, computes=None, **settings):
        _hear_exceptions()
        _need(schedule is None or callable(schedule), f"schedule={schedule!r}: give a function (step, epoch) -> factor of lr")
        _need(getattr(entrain._rank(), "_handle", None) is None or entrain._rank()._has_left,
              "this process has a Rank already, and can have one at a time: call its end() or close() first")
        entrain._rank, self._handle, self._raised, self._library = weakref.ref(self), None, [], entrain._library()
        self._is_over = self._has_left = False
        self._waiting = set()  # tensors of this step whose gradients are not ready
        initial = {name: np.asarray(value, np.float32) for name, value in tensors.items()}
        initial = {name: array if _order(array)[1] else array.copy("K") for name, array in initial.items()}
        _need(all(name in initial and len(pair) == 2 for name, pair in rates.items()),
              f"rates={rates}: give (factor of lr, weight_decay) of tensors among {', '.join(initial)}")
        self._tensors = {name: (i, array.shape, array.strides) for i, (name, array) in enumerate(initial.items())}
        declared = (_Tensor * len(initial))(*(
            _described(_Tensor, name, array, initial=array.ctypes.data,
                       rates=ctypes.pointer(_Rates(*rates[name])) if name in rates else None) for name, array in initial.items()))
        judge, names = functools.partial(self._judge, evaluate, has_accuracy), list(initial)
        self._evaluate = _Evaluate(_guarded(judge, self._raised, tell=self._abort)) if evaluate else _Evaluate()
        stepped = _guarded(lambda first, n: (step(names[first:first + n]), None)[1], self._raised, tell=self._abort)
        self._step = _Step(stepped) if step else _Step()
        kept = [_memory(*item, flag) for flag, some in enumerate((memories, own_memories)) for item in some.items()]
        options = _Options(
            abi=1, size=ctypes.sizeof(_Options), ntensors=len(initial), tensors=declared, train_samples=train_samples,
            flags=sum(flag << i for i, flag in enumerate((environment, reads_weights, has_accuracy, steps_itself or bool(step)))),
            model=model.encode(), data=data.encode(), data_sha256=data_sha256 and data_sha256.encode(), step=self._step,
            computes=(computes or f"numpy {np.__version__}").encode(), plugins=os.environb.get(b"ENTRAIN_PLUGIN_PATH") or None,
            evaluate=self._evaluate, nmemories=len(kept), memories=(_Memory * len(kept))(*kept),
            program=os.fsencode(getattr(sys.modules["__main__"], "__file__", None) or "") or None,
            schedule=_Schedule(_guarded(lambda *at: float(schedule(*at)), self._raised, math.nan)) if schedule else _Schedule())
        library, handle = self._library, _Handle()
        handle.library, handle.memories = library, [*memories.values(), *own_memories.values()]
        _need(self._check(library.en_rank_open(ctypes.byref(options), *entrain._texts(settings), ctypes.byref(handle))),
              "the run that resume=auto names has finished: give another out")
        self._handle, self._interrupts, self._process = handle, _Interrupts(handle), os.getpid()
        library.en_rank_about.restype = ctypes.POINTER(_Facts)
        library.en_rank_weights.restype = library.en_rank_gradient.restype = ctypes.c_void_p
        facts = library.en_rank_about(handle).contents
        self.about = {name: value.decode() if isinstance(value := getattr(facts, name), bytes) else value
                      for name, *_ in _Facts._fields_[1:]}
        self.weights, self.gradients = ({name: _view(at(handle, i), *laid, handle) for name, (i, *laid) in self._tensors.items()}
                                        for at in (library.en_rank_weights, library.en_rank_gradient))
        for array in self.weights.values():
            array.flags.writeable = not reads_weights

    def _judge(self, evaluate, has_accuracy, weights, score):
        seen = {name: _copy(_view(weights[i], *laid)) for name, (i, *laid) in self._tensors.items()}
        score[0].loss, score[0].accuracy = evaluate(seen) if has_accuracy else (evaluate(seen), 0)

    def _abort(self, error):
        if self._handle is not None and not self._has_left:  # else the ranks have not met
            self._has_left = True
            lines = str(error).strip().splitlines() or [""]  # of a loader's exception: what it is, the trace, the cause
            text = lines[0] if len(lines) == 1 else f"{lines[0]} .. {lines[-1]}"
            self._library.en_rank_abort(self._handle, f"{type(error).__name__}: {text}".encode(errors="replace"))

    def _check(self, status):
        if self._raised:
            raise self._raised.pop()
        self._is_over |= status == _ESTOP
        if status in (_OK, _ESTOP):
            return status == _OK
        text = ctypes.create_string_buffer(2048)
        self._library.en_rank_why(text, ctypes.c_size_t(len(text)))
        text = text.value.decode(errors="replace") or f"status {status}"
        raise RefusedError(text) if status in _INVALID else RunError(text, status)

    def _next(self):
        """Number and samples of the next batch of this rank; None: that was the last."""
        batch = _Batch()
        if self._check(self._library.en_rank_next(self._handle, ctypes.byref(batch))):
            return batch.number, np.frombuffer(ctypes.string_at(batch.samples, 4 * batch.count), np.uint32).copy()

    def _begin(self, count):
        """A step with the oldest batch that was handed out; False: the run ends before it."""
        if not self._check(self._library.en_rank_begin(self._handle, ctypes.c_uint64(count))):
            return False
        self._waiting = set(self._tensors) if count else set()
        if count == 0:  # the others have a few samples more
            self.finish(0.0)
        return True

    def batches(self):
        """The samples of each batch of this rank, as an array of indices, until the run ends: each is a step, to be finished."""
        while (batch := self._next()) is not None and self._begin(len(batch[1])):
            if len(batch[1]) > 0:
                yield batch[1]

    def ready(self, name):
        """The gradient of this tensor is complete, and its weights are not read in this step any more: it may leave."""
        self._check(self._library.en_rank_ready(self._handle, self._tensors[name][0]))
        self._waiting.discard(name)

    def finish(self, loss, accuracy=0.0):
        """Ends the step. Gradients of tensors that were not ready leave now, so they have to be filled, too."""
        for name in [name for name in reversed(list(self._tensors)) if name in self._waiting]:
            self.ready(name)
        score = _Score(size=ctypes.sizeof(_Score), loss=loss, accuracy=accuracy)
        self._check(self._library.en_rank_finish(self._handle, ctypes.byref(score)))

    def end(self):
        """After batches() has ended: the last evaluation, the report, the goodbye."""
        _need(self._is_over or not self._handle, "end() while the run has steps left: call it when batches() has ended")
        self._check(self._library.en_rank_end(self._handle))
        self._has_left = True
        self._interrupts.end()

    def stop(self, why="the program"):
        """Asks for an early end in good order: batches() ends on all ranks."""
        self._library.en_rank_stop(self._handle, why.encode())

    def close(self):
        """Without an end() before, this is a death for the other ranks. `weights` are copies then; arrays in use stay valid."""
        if self._handle is None:
            return
        self._interrupts.end()
        self._abort(RuntimeError("the program closed its rank before the end of the run"))
        self.weights, self.gradients = {name: _copy(array) for name, array in self.weights.items()}, None
        self._handle = self._interrupts = None

    def __exit__(self, kind, error, trace):
        try:
            if error is not None:
                self._abort(error)
            elif self._is_over and not self._has_left:
                self.end()
        finally:
            self.close()
