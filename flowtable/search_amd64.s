//go:build !noasm && !race

#include "textflag.h"

// Offsets in Search and geometry (search.go asserts the sizes).
#define search_hash   0
#define search_slot   8
#define search_family 12
#define geo_buckets   0
#define geo_records   8
#define geo_homes     16
#define geo_size      24

// func fetchBuckets(geo *geometries, group []Search)
TEXT ·fetchBuckets(SB), NOSPLIT, $0-32
	MOVQ  geo+0(FP), DI
	MOVQ  group_base+8(FP), SI
	MOVQ  group_len+16(FP), CX
	TESTQ CX, CX
	JZ    done

next:
	MOVL       search_family(SI), DX
	MOVL       4(SI), AX              // the hash's high half
	SHLQ       $5, DX
	IMULQ      geo_homes(DI)(DX*1), AX
	SHRQ       $32, AX
	SHLQ       $6, AX
	ADDQ       geo_buckets(DI)(DX*1), AX
	PREFETCHT0 (AX)
	ADDQ       $16, SI
	DECQ       CX
	JNZ        next

done:
	RET

// func fetchFlows(geo *geometries, group []Search)
//
// A tag that matches is a byte of 0xff after PCMPEQB; of those, ctl's low 11 bits say which slots
// are members. The 16 bytes that are compared begin with the tags; the mask cuts the rest.
TEXT ·fetchFlows(SB), NOSPLIT, $0-32
	MOVQ  geo+0(FP), DI
	MOVQ  group_base+8(FP), SI
	MOVQ  group_len+16(FP), CX
	XORL  R11, R11
	MOVQ  $0x0101010101010101, R12
	TESTQ CX, CX
	JZ    done

next:
	MOVL       search_family(SI), DX
	MOVL       4(SI), AX
	SHLQ       $5, DX
	IMULQ      geo_homes(DI)(DX*1), AX
	SHRQ       $32, AX
	SHLQ       $6, AX
	ADDQ       geo_buckets(DI)(DX*1), AX
	MOVBLZX    search_hash(SI), BX
	IMULQ      R12, BX
	MOVQ       BX, X0
	PUNPCKLQDQ X0, X0
	MOVOU      8(AX), X1
	PCMPEQB    X1, X0
	PMOVMSKB   X0, BX
	ANDL       0(AX), BX
	XORL       R9, R9
	ANDL       $0x7ff, BX
	BSFL       BX, R9
	MOVL       20(AX)(R9*4), R10
	TESTL      BX, BX
	CMOVLEQ    R11, R10
	MOVL       R10, search_slot(SI)

	// The flow's first and last line, which are one of IPv4.
	ANDL       $0x7fffffff, R10
	MOVQ       geo_size(DI)(DX*1), R8
	IMULQ      R8, R10
	ADDQ       geo_records(DI)(DX*1), R10
	PREFETCHT0 (R10)
	PREFETCHT0 -64(R10)(R8*1)
	ADDQ       $16, SI
	DECQ       CX
	JNZ        next

done:
	RET
