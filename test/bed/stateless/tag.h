// SPDX-License-Identifier: Apache-2.0
/* What every packet carries, right behind its transport header (in a later
 * fragment: behind its IP header). tag.go is its twin in Go. */
#pragma once

enum { TAG_MAGIC = 0x534c };

struct tag {
	__be16 magic, run;
	__be32 flow, sequence;
	__be16 time_high; /* nanoseconds of CLOCK_MONOTONIC, 48 bits */
	__be32 time_low;
} __attribute__((packed));

_Static_assert(sizeof(struct tag) == 18, "the Go side and the frames of 64 bytes count on it");
