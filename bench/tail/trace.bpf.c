//go:build ignore

// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Events of the scheduler, softirqs, interrupts and some system calls, with their times: programs
 * on the kernel's tracepoints (BPF_TRACE_RAW_TP) write each event into an array that user space
 * maps, in the CPU's part of it. The kernel lets only programs with a GPL-compatible licence read
 * its structures: hence the licence of this file, which is not part of the product.
 *
 * Kernel types have only the fields used here; the loader finds their offsets (CO-RE).
 */
#include "../../xdpprog/kernel.h"

#define KERNEL __attribute__((preserve_access_index))

struct task_struct {
	int pid, tgid;
	char comm[16];
} KERNEL;

struct ns_common {
	unsigned int inum;
} KERNEL;

struct net {
	struct ns_common ns;
} KERNEL;

typedef struct {
	struct net *net;
} KERNEL possible_net_t;

struct net_device {
	possible_net_t nd_net;
	int ifindex;
} KERNEL;

struct napi_struct {
	struct net_device *dev;
} KERNEL;

enum kind { /* events.go is the twin */
	SWITCH = 1,     /* thread: the one before, state: why it stopped; other: the next one */
	WAKING,         /* thread: who is woken, other: by whom */
	SOFTIRQ,        /* state: the vector */
	SOFTIRQ_END,    /* the same */
	INTERRUPT,      /* state: of what kind */
	INTERRUPT_END,  /* the same */
	POLL,           /* a NAPI poll ended; state: packets, other: ifindex, id: the NAPI, thread: netns */
	CALL,           /* a system call began; thread: who, state: its number */
	CALL_END,       /* and ended */
	SAMPLE,         /* thread: who ran, state: its stack in stacks, negative if it has none */
};

enum interrupt { DEVICE, TIMER, RESCHEDULE, FUNCTION };

struct event {
	__u64 at, id;
	__u32 thread, other, state;
	__u16 kind, unused;
};

struct name {
	__u32 process;
	char text[16];
};

struct cursor { /* of a CPU; a cache line of its own */
	__u64 next, unused[7];
};

volatile const __u32 room = 0;       /* events of a CPU */
volatile const __u32 processes[2] = {}; /* whose system calls are events; whose threads are sampled is the second */

struct { /* the loader sets the size: room for each CPU */
	UINT(type, MAP_ARRAY);
	UINT(max_entries, 1);
	UINT(map_flags, MMAPABLE);
	TYPE(key, __u32);
	TYPE(value, struct event);
} events SEC(".maps");

struct {
	UINT(type, MAP_ARRAY);
	UINT(max_entries, 1);
	UINT(map_flags, MMAPABLE);
	TYPE(key, __u32);
	TYPE(value, struct cursor);
} cursors SEC(".maps");

struct { /* names of threads that ran */
	UINT(type, MAP_HASH);
	UINT(max_entries, 16384);
	TYPE(key, __u32);
	TYPE(value, struct name);
} names SEC(".maps");

enum { STACK_TRACE = 7, STACK_DEPTH = 32 };

struct stack {
	__u64 functions[STACK_DEPTH];
};

struct { /* of samples, in user space */
	UINT(type, STACK_TRACE);
	UINT(max_entries, 16384);
	TYPE(key, __u32);
	TYPE(value, struct stack);
} stacks SEC(".maps");

static long (*const map_update)(void *map, const void *key, const void *value, __u64 flags) = (void *)2;
static __u64 (*const ktime_get_ns)(void) = (void *)5;
static __u32 (*const smp_processor_id)(void) = (void *)8;
static __u64 (*const current_pid_tgid)(void) = (void *)14;
static long (*const stack_id)(void *ctx, void *map, __u64 flags) = (void *)27;

INLINE void note(__u16 kind, __u32 thread, __u32 other, __u32 state, __u64 id)
{
	__u32 cpu = smp_processor_id();
	struct cursor *c = map_lookup(&cursors, &cpu);
	if (!c)
		return;
	__u64 n = __sync_fetch_and_add(&c->next, 1); /* an interrupt's events may come between */
	__u32 at = cpu * room + n;
	struct event *e = n < room ? map_lookup(&events, &at) : 0;
	if (!e)
		return; /* next says how many are missing */
	e->at = ktime_get_ns();
	e->id = id;
	e->thread = thread;
	e->other = other;
	e->state = state;
	e->kind = kind;
}

INLINE void name_task(struct task_struct *t)
{
	__u32 id = t->pid;
	if (map_lookup(&names, &id))
		return;
	struct name n = {.process = t->tgid};
	for (int i = 0; i < 16; i++)
		n.text[i] = t->comm[i];
	map_update(&names, &id, &n, 0);
}

SEC("tp_btf/sched_switch") int sched_switch(__u64 *ctx)
{
	struct task_struct *from = (void *)ctx[1], *to = (void *)ctx[2];
	note(SWITCH, from->pid, to->pid, ctx[3], 0);
	name_task(to);
	return 0;
}

SEC("tp_btf/sched_waking") int sched_waking(__u64 *ctx)
{
	struct task_struct *t = (void *)ctx[0];
	note(WAKING, t->pid, current_pid_tgid(), 0, 0);
	return 0;
}

SEC("tp_btf/softirq_entry") int softirq_entry(__u64 *ctx)
{
	note(SOFTIRQ, 0, 0, ctx[0], 0);
	return 0;
}

SEC("tp_btf/softirq_exit") int softirq_exit(__u64 *ctx)
{
	note(SOFTIRQ_END, 0, 0, ctx[0], 0);
	return 0;
}

#define INTERRUPTS(name, what)                                                                                         \
	SEC("tp_btf/" #name "_entry") int name##_entry(__u64 *ctx)                                                     \
	{                                                                                                              \
		note(INTERRUPT, 0, 0, what, 0);                                                                        \
		return 0;                                                                                              \
	}                                                                                                              \
	SEC("tp_btf/" #name "_exit") int name##_exit(__u64 *ctx)                                                       \
	{                                                                                                              \
		note(INTERRUPT_END, 0, 0, what, 0);                                                                    \
		return 0;                                                                                              \
	}

INTERRUPTS(irq_handler, DEVICE)
INTERRUPTS(local_timer, TIMER)
INTERRUPTS(reschedule, RESCHEDULE)
INTERRUPTS(call_function_single, FUNCTION)

SEC("tp_btf/napi_poll") int napi_poll(__u64 *ctx)
{
	struct napi_struct *n = (void *)ctx[0];
	struct net_device *d = n->dev; /* none: the backlog of a CPU */
	note(POLL, d->nd_net.net->ns.inum, d->ifindex, ctx[1], (__u64)n);
	return 0;
}

INLINE bool watched(__u32 process) { return process && (process == processes[0] || process == processes[1]); }

SEC("tp_btf/sys_enter") int sys_enter(__u64 *ctx)
{
	__u64 id = current_pid_tgid();
	if (watched(id >> 32))
		note(CALL, id, 0, ctx[1], 0);
	return 0;
}

SEC("tp_btf/sys_exit") int sys_exit(__u64 *ctx)
{
	__u64 id = current_pid_tgid();
	if (watched(id >> 32))
		note(CALL_END, id, 0, 0, 0);
	return 0;
}

enum { USER_STACK = 1 << 8, FAST_COMPARE = 1 << 9 };

SEC("perf_event") int sample(void *ctx)
{
	note(SAMPLE, current_pid_tgid(), 0, stack_id(ctx, &stacks, USER_STACK | FAST_COMPARE), 0);
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
