"""entrain.Rank: a program of your own as one rank of a run, on numpy.

    with entrain.Rank({"slope": 0.0, "offset": 0.0}, train_samples=1000, strategy="ring", batch_size=16, lr=0.1, epochs=3) as rank:
        for samples in rank.batches():                    # indices; ends with the run
            rank.gradients["slope"][...] = ..             # of the mean loss over them, at rank.weights
            rank.finish(loss)                             # now rank.weights are those of the next step

Start it once for each rank, by torchrun, srun or mpirun, or by hand with world_size= and rank=. include/entrain/rank.h
describes the calls, `entrain worker --help=all` lists the settings.
"""
import atexit
import ctypes
import os
import signal
import socket
import sys
import threading
import weakref

import numpy as np

import entrain
from entrain import _need, _struct

_OK, _ESTOP, _INVALID = 0, 12, {1, 4, 13}  # EN_EINVAL, EN_ENOENT, EN_EMISMATCH
_floats = ctypes.POINTER(ctypes.c_float)
_MEMORY_TYPES = {"float32": 1, "bfloat16": 2, "float16": 3, "int32": 4, "uint8": 5, "int64": 6, "float64": 7, "bool": 8, "int8": 9,
                 "int16": 10, "uint16": 11, "uint32": 12, "uint64": 13}  # all others as bytes
_BOOLS = {"off": False, "on": True, "false": False, "true": True, "no": False, "yes": True, "0": False, "1": True}

_Rates, _dims = _struct("f32 lr_factor weight_decay"), ctypes.c_uint64 * 8
_Tensor = _struct("u32 size reserved; text name; dims shape; *f32 initial; at rates", shape=_dims, rates=ctypes.POINTER(_Rates))
_Memory = _struct("u32 size flags dtype reserved; text name; dims shape; at data", shape=_dims)
_Score = _struct("u32 size reserved; f64 loss accuracy")
_Evaluate = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(_floats), ctypes.POINTER(_Score))
_Options = _struct("u32 abi size flags ntensors; at tensors; u64 train_samples; text model data data_sha256 computes plugins; "
                   "call evaluate; at log user; u32 nmemories reserved; at memories; text program",
                   tensors=ctypes.POINTER(_Tensor), evaluate=_Evaluate, memories=ctypes.POINTER(_Memory))
_Facts = _struct("u32 size; i32 rank nranks local_rank nlocal is_claiming; u64 seed batch global_batch samples steps first_step; "
                 "f64 lr; text strategy strategy_options out")
_Batch = _struct("u64 number epoch count; *u32 samples")


def _declare(memories, own):
    """The library reads and writes these arrays, where they lie."""
    declared = (_Memory * (len(memories) + len(own)))()
    for memory, (name, array), flags in zip(declared, [*memories.items(), *own.items()], [0] * len(memories) + [1] * len(own)):
        _need(isinstance(array, np.ndarray) and array.flags.c_contiguous and array.flags.writeable and array.size > 0,
              f"memory {name}: give a writable numpy array that is contiguous and has an element")
        _need(not array.dtype.hasobject, f"memory {name} of {array.dtype} has Python objects, which other processes lack: give "
              "numbers or bytes")
        is_finite = array.dtype != np.float32 or np.isfinite(array).all()  # a mask of -inf is no number to average
        name_of_type = (array.dtype.metadata or {}).get("type", array.dtype.name)
        type = _MEMORY_TYPES.get(name_of_type) if is_finite and array.dtype.isnative else None
        shape = array.shape if type or array.itemsize == 1 else (*array.shape, array.itemsize)
        _need(len(shape) <= 8, f"memory {name} of {array.dtype} has shape {array.shape}: give fewer dimensions")
        memory.size, memory.flags, memory.dtype = ctypes.sizeof(_Memory), flags, type or _MEMORY_TYPES["uint8"]
        memory.name, memory.data = name.encode(), array.ctypes.data
        memory.shape[:len(shape)] = shape
    return declared


def _prototypes(library):
    rank, number, text, status = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_char_p, ctypes.c_int
    for name, result, *arguments in (
            ("about", ctypes.POINTER(_Facts), rank), ("weights", rank, rank, number), ("gradient", rank, rank, number),
            ("next", status, rank, ctypes.POINTER(_Batch)), ("begin", status, rank, ctypes.c_uint64),
            ("ready", status, rank, number), ("finish", status, rank, ctypes.POINTER(_Score)), ("end", status, rank),
            ("status", status, rank), ("close", None, rank), ("stop", None, rank, text), ("abort", None, rank, text),
            ("why", None, text, ctypes.c_size_t)):
        call = getattr(library, "en_rank_" + name)
        call.restype, call.argtypes = result, arguments
    return library


def setting(name, default=None):
    """VALUE of `entrain run --set.NAME=VALUE .. -- python3 train.py`, or of an arm of `entrain compare`, as default's type; else
    default. Call it before Rank(), since the tensors may depend on it."""
    entrain._library = entrain._library or entrain._load()
    text = ctypes.create_string_buffer(4096)
    if entrain._library.en_rank_setting(name.encode(), text, ctypes.c_size_t(len(text))) < 0:
        return default
    text = text.value.decode()
    if isinstance(default, bool):
        _need(text.lower() in _BOOLS, f"--set.{name}: \"{text}\" is neither on nor off")
        return _BOOLS[text.lower()]
    return text if default is None else type(default)(text)


class RunError(RuntimeError):
    """The run has failed: a peer died, training diverged, .. `status` is that of include/entrain/status.h."""

    def __init__(self, text, status):
        super().__init__(text)
        self.status = status


class _Handle:
    """An open rank. All arrays on its memory refer to it, so it is closed when the last one is gone."""

    def __init__(self, library, pointer, memories):
        self.library, self.pointer, self.memories = library, pointer, memories

    def view(self, address, shape):
        memory = (ctypes.c_float * int(np.prod(shape, dtype=np.int64))).from_address(address)
        memory.handle = self
        return np.frombuffer(memory, np.float32).reshape(shape)

    def __del__(self):
        self.library.en_rank_close(self.pointer)


def _weakly(method, afterwards=lambda *arguments: None):
    """Calls the method as long as its object lives: a hook of fork cannot be taken back."""
    weak = weakref.WeakMethod(method)
    return lambda *arguments: (weak() or afterwards)(*arguments)


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
        os.register_at_fork(before=_weakly(self.hold), after_in_parent=_weakly(self.release), after_in_child=_weakly(self.be_child))

    def note(self, number, frame):
        self.count += 1
        if self.count > 1:
            raise KeyboardInterrupt

    def hear(self):
        heard = 0
        while byte := self.ear.recv(1):
            if byte[0] in self.before:
                heard += 1
                if heard == 1:
                    self.handle.library.en_rank_stop(self.handle.pointer, b"Ctrl-C" if byte[0] == signal.SIGINT else b"SIGTERM")
                else:
                    self.handle.library.en_rank_abort(self.handle.pointer, b"interrupted twice")

    # A signal to a child made by fork is not this run's: a Pool ends its workers by SIGTERM. None may come in between.

    def hold(self):
        self.mask = signal.pthread_sigmask(signal.SIG_BLOCK, self.before)

    def release(self):
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)

    def be_child(self):
        self.leave()
        self.release()

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


class Rank:
    """One rank of a run. Settings are those of `entrain worker`, as keywords: strategy="ssp:bound=3", batch_size=32, lr=0.1,
    server="tcp://127.0.0.1:5555", world_size=2, rank=0, out="folder" ..

    tensors         {name: initial values}, in the order of forward; rank 0's values count
    train_samples   batches are indices below it
    memories        {name: array}: arrays of any type that belong to a checkpoint, such as running statistics: rank 0's count. They
                    are read and written where they are; change them between batches() and finish()
    own_memories    the same, of which each rank has its own, such as the state of a generator
    rates           {name: (factor of lr, weight_decay)} of tensors that have their own
    evaluate        called with {name: array} on rank 0; returns loss, or (loss, accuracy) with has_accuracy
    reads_weights   the program never writes to rank.weights: the ranks of a host may then share one copy
    steps_itself    the program's own optimizer (ring, solo): after finish() the gradients are the mean over all ranks, and the
                    program changes rank.weights, alike on all ranks
    environment     whether variables of torchrun, Slurm and MPI are read

    weights, gradients   {name: float32 array}, at the same addresses for the whole run
    about                rank, nranks, steps, samples, batch, lr, strategy ..

    ValueError: a setting, or a wrong call. RunError: the run has failed, on all ranks.
    """

    def __init__(self, tensors, train_samples, *, memories={}, own_memories={}, rates={}, evaluate=None, has_accuracy=False,
                 reads_weights=False, steps_itself=False, environment=True, model="program", data="data", data_sha256=None,
                 computes=None, **settings):
        _need(getattr(entrain._rank(), "_handle", None) is None or entrain._rank()._has_left,
              "this process has a Rank already, and can have one at a time: call its end() or close() first")
        entrain._rank, entrain._library = weakref.ref(self), entrain._library or entrain._load()
        self._library, self._raised, self._handle = _prototypes(entrain._library), None, None
        self._is_over = self._has_left = False
        self._waiting = set()  # tensors of this step whose gradients are not ready
        initial = {name: np.array(value, np.float32, order="C") for name, value in tensors.items()}
        self._names = {name: i for i, name in enumerate(initial)}
        declared = (_Tensor * len(initial))()
        for tensor, (name, value) in zip(declared, initial.items()):
            _need(value.ndim <= 8 and value.size > 0,
                  f"tensor {name} has shape {value.shape}: give 1 to 8 dimensions, and an element")
            tensor.size, tensor.name, tensor.initial = ctypes.sizeof(_Tensor), name.encode(), value.ctypes.data_as(_floats)
            tensor.shape[:value.ndim] = value.shape
            if name in rates:
                tensor.rates = ctypes.pointer(_Rates(*rates[name]))
        self._shapes = [value.shape for value in initial.values()]
        self._evaluate = _Evaluate(self._judge(evaluate, has_accuracy)) if evaluate else _Evaluate()
        kept = _declare(memories, own_memories)
        plugins, script = os.environ.get("ENTRAIN_PLUGIN_PATH"), getattr(sys.modules["__main__"], "__file__", None)
        options = _Options(
            abi=1, size=ctypes.sizeof(_Options), ntensors=len(initial), tensors=declared, train_samples=train_samples,
            flags=sum(flag << i for i, flag in enumerate((environment, reads_weights, has_accuracy, steps_itself))),
            model=model.encode(), data=data.encode(), data_sha256=data_sha256 and data_sha256.encode(),
            computes=(computes or f"numpy {np.__version__}").encode(), plugins=os.fsencode(plugins) if plugins else None,
            evaluate=self._evaluate, nmemories=len(kept), memories=kept, program=os.fsencode(script) if script else None)
        texts = [text.encode() for text in entrain._texts(settings)]
        pointer = ctypes.c_void_p()
        if not self._check(self._library.en_rank_open(ctypes.byref(options), (ctypes.c_char_p * len(texts))(*texts),
                                                      ctypes.c_size_t(len(texts)), ctypes.byref(pointer))):
            raise ValueError("the run that resume=auto names has finished: give another out")
        handle = self._handle = _Handle(self._library, pointer, [*memories.values(), *own_memories.values()])
        self._interrupts, self._shows = _Interrupts(handle), sys.excepthook
        self._tells = sys.excepthook = _weakly(self._tell, self._shows)
        self._process = os.getpid()
        atexit.register(_weakly(self._forgotten))
        facts = self._library.en_rank_about(pointer).contents
        self.about = {name: value.decode() if isinstance(value := getattr(facts, name), bytes) else value
                      for name, *_ in _Facts._fields_[1:]}
        self.weights, self.gradients = ({name: handle.view(at(pointer, i), shape) for (name, i), shape
                                         in zip(self._names.items(), self._shapes)}
                                        for at in (self._library.en_rank_weights, self._library.en_rank_gradient))
        for array in self.weights.values():
            array.flags.writeable = not reads_weights

    def _judge(self, evaluate, has_accuracy):
        def callback(user, weights, score):
            try:
                seen = {name: np.ctypeslib.as_array(weights[i], shape or (1,)).reshape(shape).copy()
                        for (name, i), shape in zip(self._names.items(), self._shapes)}
                score[0].loss, score[0].accuracy = evaluate(seen) if has_accuracy else (evaluate(seen), 0)
                return _OK
            except BaseException as error:  # raised again by the call that asked
                self._raised = error
                self._abort(error)
                return 1
        return callback

    def _abort(self, error):
        if self._handle is not None and not self._has_left:  # else the ranks have not met
            self._has_left = True
            lines = str(error).strip().splitlines() or [""]  # of a loader's exception: what it is, the trace, the cause
            text = lines[0] if len(lines) == 1 else f"{lines[0]} .. {lines[-1]}"
            self._library.en_rank_abort(self._handle.pointer, f"{type(error).__name__}: {text}".encode(errors="replace"))

    def _tell(self, kind, error, trace):  # nobody has caught it
        self._abort(error)
        self._shows(kind, error, trace)

    def _forgotten(self):  # the interpreter ends
        if os.getpid() == self._process and self._handle is not None and not self._has_left:
            if self._library.en_rank_status(self._handle.pointer) == _OK:  # else the program has been told
                self._tell(RuntimeError, RuntimeError("the program ended without rank.end()"), None)

    def _check(self, status):
        raised, self._raised = self._raised, None
        if raised:
            raise raised
        self._is_over |= status == _ESTOP
        if status in (_OK, _ESTOP):
            return status == _OK
        text = ctypes.create_string_buffer(2048)
        self._library.en_rank_why(text, len(text))
        text = text.value.decode(errors="replace") or f"status {status}"
        raise ValueError(text) if status in _INVALID else RunError(text, status)

    def _open(self):
        _need(self._handle, "this rank is closed")
        return self._handle.pointer

    def _next(self):
        """Number and samples of the next batch of this rank; None: that was the last."""
        batch = _Batch()
        if self._check(self._library.en_rank_next(self._open(), batch)):
            return batch.number, np.ctypeslib.as_array(batch.samples, (batch.count,)).copy()

    def _begin(self, count):
        """A step with the oldest batch that was handed out; False: the run ends before it."""
        if not self._check(self._library.en_rank_begin(self._open(), count)):
            return False
        self._waiting = set(self._names)
        if count == 0:  # the others have a few samples more
            self._finish()
        return True

    def _finish(self, loss=0.0, accuracy=0.0):
        score = _Score(size=ctypes.sizeof(_Score), loss=loss, accuracy=accuracy)
        self._check(self._library.en_rank_finish(self._open(), score))

    def batches(self):
        """The samples of each batch of this rank, as an array of indices, until the run ends: each is a step, to be finished."""
        while (batch := self._next()) is not None and self._begin(len(batch[1])):
            if len(batch[1]) > 0:
                yield batch[1]

    def ready(self, name):
        """The gradient of this tensor is complete, and its weights are not read in this step any more: it may leave."""
        self._check(self._library.en_rank_ready(self._open(), self._names[name]))
        self._waiting.discard(name)

    def finish(self, loss, accuracy=0.0):
        """Ends the step. Gradients of tensors that were not ready leave now, so they have to be filled, too."""
        for name in [name for name in reversed(list(self._names)) if name in self._waiting]:
            self.ready(name)
        self._finish(loss, accuracy)

    def end(self):
        """After batches() has ended: the last evaluation, the report, the goodbye."""
        _need(self._is_over or not self._handle, "end() while the run has steps left: call it when batches() has ended, as it "
              "does after stop()")
        self._check(self._library.en_rank_end(self._open()))
        self._has_left = True
        self._interrupts.end()

    def stop(self, why="the program"):
        """Asks for an early end in good order: batches() ends on all ranks."""
        self._library.en_rank_stop(self._open(), why.encode())

    def close(self):
        """Without an end() before, this is a death for the other ranks. `weights` are copies then; arrays in use stay valid."""
        if self._handle is None:
            return
        self._interrupts.end()
        if sys.excepthook is self._tells:
            sys.excepthook = self._shows
        self._abort(RuntimeError("the program closed its rank before the end of the run"))
        self.weights, self.gradients = {name: array.copy() for name, array in self.weights.items()}, None
        self._handle = self._interrupts = None

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        try:
            if error is not None:
                self._abort(error)
            elif self._is_over and not self._has_left:
                self.end()
        finally:
            self.close()
