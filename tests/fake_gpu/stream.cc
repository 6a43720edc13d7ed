/* stream.cc - streams and events. */
#include <algorithm>

#include "tests/fake_gpu/machine.h"

using namespace fake_gpu;
using Lock = std::unique_lock<std::mutex>;

namespace
{

Stream *as_stream(cudaStream_t handle)
{
    return reinterpret_cast<Stream *>(handle);
}

/* A stream that is being recorded has nothing to wait for; who asks spoils the recording. */
cudaError_t refuse_recorded(const char *who, Stream *stream)
{
    if (!stream->capture) return cudaSuccess;
    complain(who, "the stream is being recorded; the recording is spoilt");
    stream->capture->is_invalid = true;
    return cudaErrorStreamCaptureUnsupported;
}

/* Recorded in a graph: only an external record can be asked for. */
cudaError_t refuse_captured(const char *who, const Event &event)
{
    if (!event.capture) return cudaSuccess;
    complain(who, "the event was last recorded by a stream that was being recorded");
    event.capture->is_invalid = true;
    return cudaErrorCapturedEvent;
}

cudaError_t make_stream(cudaStream_t *stream_out, unsigned flags, int priority)
{
    return call("cudaStreamCreate", [&](Machine &m, Lock &) {
        if (!stream_out || (flags & ~(unsigned)cudaStreamNonBlocking)) return cudaErrorInvalidValue;
        make_context(m, chosen_device());
        Stream *stream = new Stream;
        stream->flags = flags;
        stream->priority = std::max(-5, std::min(0, priority)); /* as the real one does */
        stream->device = chosen_device();
        m.streams.insert(stream);
        *stream_out = reinterpret_cast<cudaStream_t>(stream);
        return cudaSuccess;
    });
}

/* ---- recorded streams ---------------------------------------------------------------------------------- */

cudaError_t record_captured(Stream *stream, std::shared_ptr<Event> event, unsigned flags, Machine &m)
{
    if (stream->capture->is_invalid) return cudaErrorStreamCaptureInvalidated;
    if (flags & cudaEventRecordExternal) {
        Op op;
        op.name = "external record";
        op.type = cudaGraphNodeTypeEventRecord;
        op.marks = std::move(event);
        return m.submit(stream, std::move(op));
    }
    event->capture = stream->capture;
    event->capture_tail = stream->capture_tail;
    return cudaSuccess;
}

void add_to_tail(Stream *stream, const std::vector<int> &more)
{
    for (int k : more)
        if (std::find(stream->capture_tail.begin(), stream->capture_tail.end(), k) ==
            stream->capture_tail.end())
            stream->capture_tail.push_back(k);
}

cudaError_t spoil(const char *what, Stream *stream, cudaError_t error)
{
    complain("cudaStreamWaitEvent", "%s; the recording is spoilt", what);
    stream->capture->is_invalid = true;
    return error;
}

cudaError_t wait_captured(Machine &m, Stream *stream, const std::shared_ptr<Event> &event, unsigned flags)
{
    if (!stream->capture) { /* joins the recording that the event is of */
        if (!m.captures.count(event->capture.get())) {
            complain("cudaStreamWaitEvent", "the event was recorded in a graph that is complete");
            return cudaErrorCapturedEvent;
        }
        if (!(stream->flags & cudaStreamNonBlocking)) return cudaErrorStreamCaptureImplicit;
        stream->capture = event->capture;
        stream->capture->members.insert(stream);
        stream->capture_tail = event->capture_tail;
        return cudaSuccess;
    }
    if (stream->capture->is_invalid) return cudaErrorStreamCaptureInvalidated;
    if (flags & cudaEventWaitExternal) {
        Op op;
        op.name = "external wait";
        op.type = cudaGraphNodeTypeWaitEvent;
        op.waits = event;
        return m.submit(stream, std::move(op));
    }
    if (!event->capture) {
        if (!event->node) return cudaSuccess; /* never recorded */
        return spoil("the event is of work outside of the recording", stream,
                     cudaErrorStreamCaptureIsolation);
    }
    if (event->capture != stream->capture)
        return spoil("the event is of another recording", stream, cudaErrorStreamCaptureMerge);
    add_to_tail(stream, event->capture_tail);
    return cudaSuccess;
}

cudaError_t record(const char *who, cudaEvent_t event_handle, cudaStream_t handle, unsigned flags)
{
    return call(who, [&](Machine &m, Lock &) {
        Stream *stream = m.stream_of(handle);
        const std::shared_ptr<Event> event = m.event_of(event_handle);
        if (!stream || !event) return cudaErrorInvalidResourceHandle;
        if (flags & ~(unsigned)cudaEventRecordExternal) return cudaErrorInvalidValue;
        if (event->device != stream->device) {
            complain(who, "the event is of GPU %d, the stream of GPU %d", event->device, stream->device);
            return cudaErrorInvalidResourceHandle;
        }
        if (stream->capture) return record_captured(stream, event, flags, m);
        if (flags & cudaEventRecordExternal) {
            complain(who, "an external record outside of a recording");
            return cudaErrorIllegalState;
        }
        Op op;
        op.name = "mark";
        const cudaError_t error = m.submit(stream, std::move(op));
        if (error != cudaSuccess) return error;
        event->capture = nullptr;
        event->node = stream->tail;
        return cudaSuccess;
    });
}

} // namespace

extern "C" {

FAKE_GPU_API cudaError_t cudaStreamCreate(cudaStream_t *stream_out)
{
    return make_stream(stream_out, cudaStreamDefault, 0);
}

FAKE_GPU_API cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream_out, unsigned int flags)
{
    return make_stream(stream_out, flags, 0);
}

FAKE_GPU_API cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream_out, unsigned int flags,
                                                      int priority)
{
    return make_stream(stream_out, flags, priority);
}

/* Work in it is still done. */
FAKE_GPU_API cudaError_t cudaStreamDestroy(cudaStream_t handle)
{
    return call("cudaStreamDestroy", [&](Machine &m, Lock &) {
        Stream *stream = m.stream_of(handle);
        if (!stream) return cudaErrorInvalidResourceHandle;
        if (stream->capture) {
            stream->capture->is_invalid = true;
            stream->capture->members.erase(stream);
            if (stream->capture->origin == stream) m.captures.erase(stream->capture.get());
        }
        m.streams.erase(stream);
        delete stream;
        return cudaSuccess;
    });
}

FAKE_GPU_API cudaError_t cudaStreamGetFlags(cudaStream_t handle, unsigned int *flags_out)
{
    return call("cudaStreamGetFlags", [&](Machine &m, Lock &) {
        Stream *stream = m.stream_of(handle);
        if (!stream || !flags_out) return cudaErrorInvalidResourceHandle;
        *flags_out = stream->flags;
        return cudaSuccess;
    });
}

FAKE_GPU_API cudaError_t cudaStreamGetPriority(cudaStream_t handle, int *priority_out)
{
    return call("cudaStreamGetPriority", [&](Machine &m, Lock &) {
        Stream *stream = m.stream_of(handle);
        if (!stream || !priority_out) return cudaErrorInvalidResourceHandle;
        *priority_out = stream->priority;
        return cudaSuccess;
    });
}

FAKE_GPU_API cudaError_t cudaStreamSynchronize(cudaStream_t handle)
{
    return call("cudaStreamSynchronize", [&](Machine &m, Lock &lock) {
        Stream *stream = m.stream_of(handle);
        if (!stream) return cudaErrorInvalidResourceHandle;
        const cudaError_t error = refuse_recorded("cudaStreamSynchronize", stream);
        if (error != cudaSuccess) return error;
        if (stream->tail) m.settle(lock, NodeRef(stream->tail));
        return cudaSuccess;
    });
}

FAKE_GPU_API cudaError_t cudaStreamQuery(cudaStream_t handle)
{
    return call("cudaStreamQuery", [&](Machine &m, Lock &) {
        Stream *stream = m.stream_of(handle);
        if (!stream) return cudaErrorInvalidResourceHandle;
        const cudaError_t error = refuse_recorded("cudaStreamQuery", stream);
        if (error != cudaSuccess) return error;
        const NodeRef tail = stream->tail;
        if (!tail || tail->is_done) return cudaSuccess;
        m.progress(1 + (int)m.draw(8));
        return tail->is_done ? cudaSuccess : cudaErrorNotReady;
    });
}

FAKE_GPU_API cudaError_t cudaDeviceSynchronize(void)
{
    return call_outside_capture("cudaDeviceSynchronize", [&](Machine &m, Lock &lock) {
        const std::set<Stream *> streams = m.streams;
        for (Stream *stream : streams)
            if (m.streams.count(stream) && stream->device == chosen_device() && stream->tail)
                m.settle(lock, NodeRef(stream->tail));
        return cudaSuccess;
    });
}

FAKE_GPU_API cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event_handle,
                                             unsigned int flags)
{
    return call("cudaStreamWaitEvent", [&](Machine &m, Lock &) {
        Stream *stream = m.stream_of(handle);
        const std::shared_ptr<Event> event = m.event_of(event_handle);
        if (!stream || !event) return cudaErrorInvalidResourceHandle;
        if (flags & ~(unsigned)cudaEventWaitExternal) return cudaErrorInvalidValue;
        if (stream->capture || event->capture) return wait_captured(m, stream, event, flags);
        if (!event->node || event->node->is_done) return cudaSuccess;
        Op op;
        op.name = "wait";
        stream->tail = m.put(std::make_shared<const Op>(std::move(op)), {stream->tail, event->node});
        return cudaSuccess;
    });
}

FAKE_GPU_API cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void *user)
{
    return call("cudaLaunchHostFunc", [&](Machine &m, Lock &) {
        Stream *stream = m.stream_of(handle);
        if (!stream || !function) return cudaErrorInvalidResourceHandle;
        Op op;
        op.name = "host function";
        op.type = cudaGraphNodeTypeHost;
        op.is_host = true;
        op.work = [function, user] { function(user); };
        return m.submit(stream, std::move(op));
    });
}

/* ---- events -------------------------------------------------------------------------------------------- */

FAKE_GPU_API cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event_out, unsigned int flags)
{
    return call("cudaEventCreate", [&](Machine &m, Lock &) {
        const unsigned known = cudaEventBlockingSync | cudaEventDisableTiming;
        if (!event_out || (flags & ~known)) return cudaErrorInvalidValue;
        make_context(m, chosen_device());
        auto event = std::make_shared<Event>();
        event->flags = flags;
        event->device = chosen_device();
        m.events[event.get()] = event;
        *event_out = reinterpret_cast<cudaEvent_t>(event.get());
        return cudaSuccess;
    });
}

FAKE_GPU_API cudaError_t cudaEventCreate(cudaEvent_t *event_out)
{
    return cudaEventCreateWithFlags(event_out, cudaEventDefault);
}

FAKE_GPU_API cudaError_t cudaEventDestroy(cudaEvent_t handle)
{
    return call("cudaEventDestroy", [&](Machine &m, Lock &) {
        if (!m.event_of(handle)) return cudaErrorInvalidResourceHandle;
        m.events.erase(handle);
        return cudaSuccess;
    });
}

FAKE_GPU_API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    return record("cudaEventRecord", event, stream, cudaEventRecordDefault);
}

FAKE_GPU_API cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int flags)
{
    return record("cudaEventRecordWithFlags", event, stream, flags);
}

FAKE_GPU_API cudaError_t cudaEventQuery(cudaEvent_t handle)
{
    return call_outside_capture("cudaEventQuery", [&](Machine &m, Lock &) {
        const std::shared_ptr<Event> event = m.event_of(handle);
        if (!event) return cudaErrorInvalidResourceHandle;
        const cudaError_t error = refuse_captured("cudaEventQuery", *event);
        if (error != cudaSuccess) return error;
        const NodeRef node = event->node;
        if (!node || node->is_done) return cudaSuccess;
        m.progress(1 + (int)m.draw(8));
        return node->is_done ? cudaSuccess : cudaErrorNotReady;
    });
}

FAKE_GPU_API cudaError_t cudaEventSynchronize(cudaEvent_t handle)
{
    return call_outside_capture("cudaEventSynchronize", [&](Machine &m, Lock &lock) {
        const std::shared_ptr<Event> event = m.event_of(handle);
        if (!event) return cudaErrorInvalidResourceHandle;
        const cudaError_t error = refuse_captured("cudaEventSynchronize", *event);
        if (error != cudaSuccess) return error;
        if (event->node) m.settle(lock, NodeRef(event->node));
        return cudaSuccess;
    });
}

FAKE_GPU_API cudaError_t cudaEventElapsedTime(float *ms_out, cudaEvent_t from_handle, cudaEvent_t to_handle)
{
    return call("cudaEventElapsedTime", [&](Machine &m, Lock &) {
        const std::shared_ptr<Event> from = m.event_of(from_handle), to = m.event_of(to_handle);
        if (!from || !to || !ms_out || !from->node || !to->node) return cudaErrorInvalidResourceHandle;
        if ((from->flags | to->flags) & cudaEventDisableTiming) return cudaErrorInvalidResourceHandle;
        if (!from->node->is_done || !to->node->is_done) return cudaErrorNotReady;
        *ms_out = (float)((double)(to->node->done_ns - from->node->done_ns) * 1e-6);
        return cudaSuccess;
    });
}

/* ---- recording: begin and end -------------------------------------------------------------------------- */

FAKE_GPU_API cudaError_t cudaStreamBeginCapture(cudaStream_t handle, enum cudaStreamCaptureMode mode)
{
    return call("cudaStreamBeginCapture", [&](Machine &m, Lock &) {
        Stream *stream = m.stream_of(handle);
        if (!stream) return cudaErrorInvalidResourceHandle;
        if (stream->capture) return cudaErrorIllegalState;
        auto capture = std::make_shared<Capture>();
        capture->origin = stream;
        capture->owner = std::this_thread::get_id();
        capture->mode = mode;
        capture->id = ++m.ids;
        capture->members = {stream};
        stream->capture = capture;
        stream->capture_tail.clear();
        m.captures.insert(capture.get());
        return cudaSuccess;
    });
}

/* Whether all that was recorded comes before the end of the stream that began. */
static bool is_joined(const Capture &capture)
{
    std::vector<char> seen(capture.nodes.size());
    std::vector<int> open = capture.origin->capture_tail;
    while (!open.empty()) {
        const size_t k = (size_t)open.back();
        open.pop_back();
        if (seen[k]) continue;
        seen[k] = 1;
        open.insert(open.end(), capture.nodes[k].before.begin(), capture.nodes[k].before.end());
    }
    return std::find(seen.begin(), seen.end(), 0) == seen.end();
}

FAKE_GPU_API cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *graph_out)
{
    return call("cudaStreamEndCapture", [&](Machine &m, Lock &) {
        Stream *stream = m.stream_of(handle);
        if (!stream || !graph_out) return cudaErrorInvalidResourceHandle;
        *graph_out = NULL;
        const std::shared_ptr<Capture> capture = stream->capture;
        if (!capture) return cudaErrorIllegalState;
        if (capture->origin != stream) return cudaErrorStreamCaptureUnmatched;
        if (capture->mode != cudaStreamCaptureModeRelaxed && capture->owner != std::this_thread::get_id())
            return cudaErrorStreamCaptureWrongThread;
        const bool joined = is_joined(*capture);
        for (Stream *member : capture->members) {
            member->capture = nullptr;
            member->capture_tail.clear();
        }
        m.captures.erase(capture.get());
        if (capture->is_invalid || option_number("FAKE_GPU_NO_CAPTURE", 0))
            return cudaErrorStreamCaptureInvalidated;
        if (!joined) {
            complain("cudaStreamEndCapture",
                     "work was recorded that the stream which began does not wait for");
            return cudaErrorStreamCaptureUnjoined;
        }
        Graph *graph = new Graph;
        graph->nodes = std::make_shared<const GraphNodes>(std::move(capture->nodes));
        m.graphs.insert(graph);
        *graph_out = reinterpret_cast<cudaGraph_t>(graph);
        return cudaSuccess;
    });
}

FAKE_GPU_API cudaError_t cudaStreamIsCapturing(cudaStream_t handle, enum cudaStreamCaptureStatus *status_out)
{
    return call("cudaStreamIsCapturing", [&](Machine &, Lock &) {
        Stream *stream = as_stream(handle);
        if (!status_out || !machine().streams.count(stream)) return cudaErrorInvalidResourceHandle;
        *status_out = !stream->capture              ? cudaStreamCaptureStatusNone
                      : stream->capture->is_invalid ? cudaStreamCaptureStatusInvalidated
                                                    : cudaStreamCaptureStatusActive;
        return cudaSuccess;
    });
}

} // extern "C"
