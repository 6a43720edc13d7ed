/* graph.cc - recorded work: what cudaStreamEndCapture gave, done again with every launch. */
#include <cstring>

#include "tests/fake_gpu/machine.h"

using namespace fake_gpu;
using Lock = std::unique_lock<std::mutex>;

namespace
{

/* CUDA's text says that a launch "will record" an event, not what the event says between the launch and then:
 * the double takes the worse, the state of the launch before. With FAKE_GPU_GRAPH_MARKS=launch, it is that of
 * this launch from the launch on. Programs must be right with both. */
bool rearms_marks()
{
    return strcmp(option("FAKE_GPU_GRAPH_MARKS"), "launch") == 0;
}

NodeRef put_graph_node(Machine &m, const GraphNode &node, const std::vector<NodeRef> &made,
                       const NodeRef &root)
{
    std::vector<NodeRef> before = {root};
    for (int k : node.before)
        before.push_back(made[(size_t)k]);
    if (node.op->waits) before.push_back(node.op->waits->node);
    const NodeRef put = m.put(node.op, before);
    if (node.op->marks) {
        node.op->marks->capture = nullptr;
        if (rearms_marks()) node.op->marks->node = put;
    }
    return put;
}

NodeRef put_join(Machine &m, const char *name, const std::vector<NodeRef> &before)
{
    Op op;
    op.name = name;
    return m.put(std::make_shared<const Op>(std::move(op)), before);
}

} // namespace

extern "C" {

FAKE_GPU_API cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec_out, cudaGraph_t graph_handle,
                                              unsigned long long)
{
    return call("cudaGraphInstantiate", [&](Machine &m, Lock &) {
        Graph *graph = reinterpret_cast<Graph *>(graph_handle);
        if (!exec_out || !m.graphs.count(graph)) return cudaErrorInvalidValue;
        Exec *exec = new Exec;
        exec->nodes = graph->nodes;
        m.execs.insert(exec);
        *exec_out = reinterpret_cast<cudaGraphExec_t>(exec);
        return cudaSuccess;
    });
}

FAKE_GPU_API cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec_out, cudaGraph_t graph,
                                                       unsigned long long flags)
{
    return cudaGraphInstantiate(exec_out, graph, flags);
}

FAKE_GPU_API cudaError_t cudaGraphUpload(cudaGraphExec_t exec_handle, cudaStream_t handle)
{
    return call("cudaGraphUpload", [&](Machine &m, Lock &) {
        if (!m.execs.count(reinterpret_cast<Exec *>(exec_handle)) || !m.stream_of(handle))
            return cudaErrorInvalidResourceHandle;
        return cudaSuccess;
    });
}

/* All of it behind the stream's newest work and behind the graph's last launch; the stream goes on behind
 * all. */
FAKE_GPU_API cudaError_t cudaGraphLaunch(cudaGraphExec_t exec_handle, cudaStream_t handle)
{
    return call("cudaGraphLaunch", [&](Machine &m, Lock &) {
        Exec *exec = reinterpret_cast<Exec *>(exec_handle);
        Stream *stream = m.stream_of(handle);
        if (!stream || !m.execs.count(exec)) return cudaErrorInvalidResourceHandle;
        if (stream->capture) {
            complain("cudaGraphLaunch", "into a stream that is being recorded: not simulated");
            stream->capture->is_invalid = true;
            return cudaErrorStreamCaptureUnsupported;
        }
        const NodeRef root = put_join(m, "graph begins", {stream->tail, exec->last});
        std::vector<NodeRef> made;
        for (const GraphNode &node : *exec->nodes)
            made.push_back(put_graph_node(m, node, made, root));
        made.push_back(root);
        exec->last = stream->tail = put_join(m, "graph ends", made);
        return cudaSuccess;
    });
}

FAKE_GPU_API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec_handle)
{
    return call("cudaGraphExecDestroy", [&](Machine &m, Lock &) {
        Exec *exec = reinterpret_cast<Exec *>(exec_handle);
        if (!m.execs.erase(exec)) return cudaErrorInvalidValue;
        delete exec;
        return cudaSuccess;
    });
}

FAKE_GPU_API cudaError_t cudaGraphDestroy(cudaGraph_t graph_handle)
{
    return call("cudaGraphDestroy", [&](Machine &m, Lock &) {
        Graph *graph = reinterpret_cast<Graph *>(graph_handle);
        if (!m.graphs.erase(graph)) return cudaErrorInvalidValue;
        delete graph;
        return cudaSuccess;
    });
}

/* A node's handle points at it within the graph. */
FAKE_GPU_API cudaError_t cudaGraphGetNodes(cudaGraph_t graph_handle, cudaGraphNode_t *nodes, size_t *count)
{
    return call("cudaGraphGetNodes", [&](Machine &m, Lock &) {
        Graph *graph = reinterpret_cast<Graph *>(graph_handle);
        if (!count || !m.graphs.count(graph)) return cudaErrorInvalidValue;
        const GraphNodes &all = *graph->nodes;
        for (size_t i = 0; nodes && i < *count; i++)
            nodes[i] = i < all.size() ? (cudaGraphNode_t) const_cast<GraphNode *>(&all[i]) : NULL;
        if (!nodes || *count > all.size()) *count = all.size();
        return cudaSuccess;
    });
}

FAKE_GPU_API cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, enum cudaGraphNodeType *type_out)
{
    return call("cudaGraphNodeGetType", [&](Machine &, Lock &) {
        if (!node || !type_out) return cudaErrorInvalidValue;
        *type_out = reinterpret_cast<const GraphNode *>(node)->op->type;
        return cudaSuccess;
    });
}

} // extern "C"
