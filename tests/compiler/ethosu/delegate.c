// A delegate that takes the custom operators `ethos-u` of a .tflite file, and hands each to a function of the process that loads it.
// The structs have the first fields of LiteRT's C interface (tensorflow/lite/core/c/common.h, Apache-2.0), in its order.
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct { int size; int data[]; } Ints;

typedef struct {
  int type;
  void *data;
  Ints *dims;
  struct { float scale; int32_t zero_point; } params;
  int allocation_type;
  size_t bytes;
  const void *allocation;
  const char *name;
  void *delegate;
  int buffer_handle;
  bool data_is_stale, is_variable;
  struct { int type; void *params; } quantization;
  void *sparsity;
  const Ints *dims_signature;
} Tensor;

typedef struct { Ints *inputs, *outputs, *intermediates, *temporaries; void *user_data; } Node;

typedef struct Context Context;
typedef struct Delegate Delegate;

typedef struct {
  void *(*init)(Context *, const char *, size_t);
  void (*free)(Context *, void *);
  int (*prepare)(Context *, Node *);
  int (*invoke)(Context *, Node *);
  const char *(*profiling_string)(const Context *, const Node *);
  int32_t builtin_code;
  const char *custom_name;
  int version;
  void *operator_, *async_kernel;
  uint64_t inplace_operator;
} Registration;

struct Context {
  size_t tensors_size;
  int (*GetExecutionPlan)(Context *, Ints **);
  Tensor *tensors;
  void *impl;
  int (*ResizeTensor)(Context *, Tensor *, Ints *);
  void (*ReportError)(Context *, const char *, ...);
  int (*AddTensors)(Context *, int, int *);
  int (*GetNodeAndRegistration)(Context *, int, Node **, Registration **);
  int (*ReplaceNodeSubsetsWithDelegateKernels)(Context *, Registration, const Ints *, Delegate *);
  int recommended_num_threads;
  void *(*GetExternalContext)(Context *, int);
  void (*SetExternalContext)(Context *, int, void *);
  bool allow_fp32_relax_to_fp16;
  void *profiler;
  void *(*AllocatePersistentBuffer)(Context *, size_t);
  int (*AllocateBufferForEval)(Context *, size_t, void **);
  int (*RequestScratchBufferInArena)(Context *, size_t, int *);
  void *(*GetScratchBuffer)(Context *, int);
  int (*ResizeTensorExplicit)(Context *, Tensor *, int, const int *);
  int (*PreviewDelegatePartitioning)(Context *, const Ints *, void **, int *);
  Tensor *(*GetTensor)(const Context *, int);
  void *(*GetEvalTensor)(const Context *, int);
  int (*GetModelMetadata)(const Context *, const char *, const char **, size_t *);
};

// Runs a payload on constants, the arena in DRAM and SRAM; 0 where it ran.
typedef int (*Execute)(const uint8_t *payload, size_t payload_bytes, const uint8_t *constants, size_t constants_bytes, uint8_t *arena,
                       size_t arena_bytes, size_t sram_bytes);

struct Delegate {
  void *data;
  int (*Prepare)(Context *, Delegate *);
  void *copy_from, *copy_to, *free_handle;
  int64_t flags;
  void *builder;
  Execute execute;  // behind the fields of LiteRT
};

typedef struct { Delegate *delegate; int *tensors, *offsets; int inputs, outputs; } Kernel;  // outputs stand behind inputs

typedef struct { Delegate *delegate; Ints *nodes, *inputs, *outputs; } Params;

static int32_t offset_of(const Context *context, int tensor) {
  const char *data = NULL;
  size_t bytes = 0;
  int32_t count, offset;
  if (context->GetModelMetadata(context, "OfflineMemoryAllocation", &data, &bytes) || bytes < 12) return -1;
  memcpy(&count, data + 8, 4);
  if (tensor >= count || bytes < 12 + 4 * (size_t)count) return -1;
  memcpy(&offset, data + 12 + 4 * (size_t)tensor, 4);
  return offset;
}

// `buffer` is the parameters of the nodes that are replaced: one node, as each is its own subset.
static void *init(Context *context, const char *buffer, size_t length) {
  const Params *params = (const void *)buffer;
  Node *node;
  Registration *registration;
  Kernel *kernel = calloc(1, sizeof *kernel);
  (void)length;
  context->GetNodeAndRegistration(context, params->nodes->data[0], &node, &registration);
  kernel->delegate = params->delegate;
  kernel->inputs = node->inputs->size;
  kernel->outputs = node->outputs->size;
  size_t bytes = sizeof(int) * (size_t)(kernel->inputs + kernel->outputs);
  kernel->tensors = malloc(bytes);
  kernel->offsets = malloc(bytes);
  memcpy(kernel->tensors, node->inputs->data, sizeof(int) * (size_t)kernel->inputs);
  memcpy(kernel->tensors + kernel->inputs, node->outputs->data, sizeof(int) * (size_t)kernel->outputs);
  for (int place = 0; place < kernel->inputs + kernel->outputs; place++)
    kernel->offsets[place] = offset_of(context, kernel->tensors[place]);
  return kernel;
}

static void release(Context *context, void *data) {
  Kernel *kernel = data;
  (void)context;
  free(kernel->tensors);
  free(kernel->offsets);
  free(kernel);
}

// Arenas are sizes, not values: LiteRT gives them no memory, and refuses an input without any.
static int prepare(Context *context, Node *node) {
  const Kernel *kernel = node->user_data;
  (void)context;
  for (int place = 0; place < node->inputs->size; place++)
    if (node->inputs->data[place] == kernel->tensors[2] || node->inputs->data[place] == kernel->tensors[3]) node->inputs->data[place] = -1;
  return 0;
}

// Tensors [first, last) of a kernel into the arena, or out of it.
static int copy(const Context *context, const Kernel *kernel, int first, int last, uint8_t *arena, size_t arena_bytes) {
  for (int place = first; place < last; place++) {
    Tensor *tensor = &context->tensors[kernel->tensors[place]];
    int offset = kernel->offsets[place];
    bool in = place < kernel->inputs;
    if (offset < 0 || !tensor->data || (size_t)offset + tensor->bytes > arena_bytes) return 1;
    memcpy(in ? arena + offset : tensor->data, in ? tensor->data : arena + offset, tensor->bytes);
  }
  return 0;
}

static int invoke(Context *context, Node *node) {
  const Kernel *kernel = node->user_data;
  const Tensor *payload = &context->tensors[kernel->tensors[0]], *constants = &context->tensors[kernel->tensors[1]];
  size_t arena_bytes = (size_t)context->tensors[kernel->tensors[2]].dims->data[0];
  size_t sram_bytes = (size_t)context->tensors[kernel->tensors[3]].dims->data[0];
  uint8_t *arena = malloc(arena_bytes);
  int failed = !arena || copy(context, kernel, 4, kernel->inputs, arena, arena_bytes);
  failed = failed || kernel->delegate->execute(payload->data, payload->bytes, constants->data, constants->bytes, arena, arena_bytes, sram_bytes);
  failed = failed || copy(context, kernel, kernel->inputs, kernel->inputs + kernel->outputs, arena, arena_bytes);
  free(arena);
  if (failed) context->ReportError(context, "ethos-u: the stream did not run");
  return failed;
}

static int take_nodes(Context *context, Delegate *delegate) {
  Registration kernel = {.init = init, .free = release, .prepare = prepare, .invoke = invoke, .custom_name = "ethos-u", .version = 1};
  Ints *plan, *single = malloc(sizeof *single + sizeof(int)), *nodes;
  int failed = context->GetExecutionPlan(context, &plan);
  if (failed) return failed;
  nodes = malloc(sizeof *nodes + sizeof(int) * (size_t)plan->size);
  memcpy(nodes, plan, sizeof *nodes + sizeof(int) * (size_t)plan->size);  // the plan changes while nodes are replaced
  single->size = 1;
  for (int place = 0; place < nodes->size && !failed; place++) {
    Node *node;
    Registration *registration;
    failed = context->GetNodeAndRegistration(context, nodes->data[place], &node, &registration);
    if (failed || !registration->custom_name || strcmp(registration->custom_name, "ethos-u")) continue;
    single->data[0] = nodes->data[place];
    failed = context->ReplaceNodeSubsetsWithDelegateKernels(context, kernel, single, delegate);
  }
  free(nodes);
  free(single);
  return failed;
}

Delegate *tflite_plugin_create_delegate(char **keys, char **values, size_t count, void (*report)(const char *)) {
  Delegate *delegate = calloc(1, sizeof *delegate);
  for (size_t option = 0; option < count; option++)
    if (!strcmp(keys[option], "execute")) delegate->execute = (Execute)(uintptr_t)strtoull(values[option], NULL, 10);
  if (!delegate->execute) {
    report("option execute: expected the address of a function");
    free(delegate);
    return NULL;
  }
  delegate->Prepare = take_nodes;
  delegate->flags = 1;  // dynamic tensors are allowed, so no operator is prepared before the delegate has taken its own
  return delegate;
}

void tflite_plugin_destroy_delegate(Delegate *delegate) { free(delegate); }
