// The floor of `sluice-bench gaps`: a loop that reads the clock, pinned to a CPU, and says
// what gaps it saw, in the form of gaps.Window.
//
//	floor CPU SECONDS
#define _GNU_SOURCE
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

static uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

struct kind { uint64_t gaps, over_100us, over_1ms, lost_ns; };

static void add(struct kind *k, uint64_t gap)
{
	k->gaps++;
	k->over_100us += gap > 100000;
	k->over_1ms += gap > 1000000;
	k->lost_ns += gap;
}

static void print(const char *name, const struct kind *k)
{
	printf(",\"%s\":{\"gaps\":%lu,\"over_100us\":%lu,\"over_1ms\":%lu,\"lost_ns\":%lu}", name,
	       k->gaps, k->over_100us, k->over_1ms, k->lost_ns);
}

int main(int argc, char **argv)
{
	if (argc != 3) {
		fprintf(stderr, "usage: floor CPU SECONDS\n");
		return 2;
	}
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(atoi(argv[1]), &set);
	if (sched_setaffinity(0, sizeof set, &set) != 0) {
		perror("pin to the CPU");
		return 1;
	}
	const uint64_t warm = 200000000, interesting = 1000;
	struct kind all = {0}, over = {0}, preempted = {0}, place = {0};
	struct rusage before, after;
	uint64_t begin = now();
	while (now() < begin + warm)
		;
	getrusage(RUSAGE_THREAD, &before);
	// Of full length, however late others let it begin.
	uint64_t first = now(), last = first, end = first + (uint64_t)(atof(argv[2]) * 1e9), steps = 0, max = 0;
	while (last < end) {
		uint64_t t = now(), gap = t - last;
		last = t;
		steps++;
		if (gap <= interesting)
			continue;
		if (gap > max)
			max = gap;
		add(&all, gap);
		getrusage(RUSAGE_THREAD, &after);
		add(after.ru_nvcsw != before.ru_nvcsw ? &over : after.ru_nivcsw != before.ru_nivcsw ? &preempted : &place, gap);
		before = after;
	}
	printf("{\"nanos\":%lu,\"steps\":%lu,\"max_ns\":%lu", last - first, steps, max);
	print("all", &all);
	print("handed_over", &over);
	print("preempted", &preempted);
	print("in_place", &place);
	printf("}\n");
	return 0;
}
