//go:build !noasm && !race

#include "textflag.h"

// Offsets in Search, which begins with its key, and in geometry (search.go and header/inspect.go assert them).
#define search_family 0
#define search_proto  4
#define search_ports  8
#define search_addr   16
#define search_hash   48
#define search_slot   56
#define search_size   64
#define geo_buckets   0
#define geo_records   8
#define geo_homes     16
#define geo_size      24

// And in records.
#define flow_meta  0
#define flow_delta 24
#define flow_ports 40
#define flow_addr  48

// And in header.Rewrite (header/rewrite.go asserts them). Family and protocol lie side by side as in Search.
#define rewrite_addrs  8
#define rewrite_ports  16
#define rewrite_delta  20
#define rewrite_family 24

// func fetchBuckets(geo *geometries, secret *HashKey, group []Search)
//
// hash4 and hash6, and the home in the index. A search for nothing has one home for any hash.
TEXT ·fetchBuckets(SB), NOSPLIT, $0-40
	MOVQ  geo+0(FP), DI
	MOVQ  secret+8(FP), R8
	MOVQ  group_base+16(FP), SI
	MOVQ  group_len+24(FP), CX
	TESTQ CX, CX
	JZ    done

next:
	MOVL search_family(SI), BX
	MOVL search_ports(SI), R9
	SHLQ $8, R9
	MOVL search_proto(SI), DX
	ORQ  DX, R9
	MOVQ search_addr(SI), AX
	XORQ 0(R8), AX
	CMPL BX, $1
	JEQ  six
	XORQ 8(R8), R9
	MULQ R9
	XORQ 16(R8), AX
	XORQ 24(R8), DX

fold:
	MULQ       DX
	XORQ       DX, AX
	MOVQ       AX, search_hash(SI)
	SHRQ       $32, AX
	SHLQ       $5, BX
	IMULQ      geo_homes(DI)(BX*1), AX
	SHRQ       $32, AX
	SHLQ       $6, AX
	ADDQ       geo_buckets(DI)(BX*1), AX
	PREFETCHT0 (AX)
	ADDQ       $search_size, SI
	DECQ       CX
	JNZ        next

done:
	RET

six:
	MOVQ search_addr+8(SI), DX
	XORQ 8(R8), DX
	MULQ DX
	MOVQ AX, R10
	MOVQ DX, R11
	MOVQ search_addr+16(SI), AX
	XORQ 16(R8), AX
	MOVQ search_addr+24(SI), DX
	XORQ 24(R8), DX
	MULQ DX
	XORQ R11, AX      // h1 ^ l2
	XORQ R10, DX      // l1 ^ h2
	XORQ 32(R8), AX
	XORQ 40(R8), DX
	XORQ R9, DX
	MULQ DX
	XORQ 8(R8), AX
	XORQ 0(R8), DX
	JMP  fold

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
	MOVL       search_hash+4(SI), AX
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
	ADDQ       $search_size, SI
	DECQ       CX
	JNZ        next

done:
	RET

// func match(geo *geometries, group []Search, flows []*Flow, rewrites []header.Rewrite, steady *steady, now uint32) int
//
// Meta is loaded before the key: a live flow's ports are final. Record 0 is never live.
TEXT ·match(SB), NOSPLIT, $0-104
	MOVQ geo+0(FP), DI
	MOVQ group_base+8(FP), SI
	MOVQ group_len+16(FP), CX
	MOVQ flows_base+32(FP), R15
	MOVQ steady+80(FP), R13
	MOVL now+88(FP), R12
	XORL R11, R11              // packets that matched

next:
	CMPQ  R11, CX
	JGE   done
	MOVL  search_slot(SI), AX
	MOVL  search_family(SI), DX
	MOVL  AX, BX
	SHRL  $31, BX              // side
	ANDL  $0x7fffffff, AX
	SHLQ  $5, DX
	IMULQ geo_size(DI)(DX*1), AX
	ADDQ  geo_records(DI)(DX*1), AX

	// Age, against what it may be.
	MOVQ  flow_meta(AX), R8
	MOVQ  R8, R9
	SHRQ  $32, R9
	MOVBLZX R9, R9
	MOVL  BX, R10
	SHLL  $8, R10
	ADDL  R10, R9
	MOVL  R12, R10
	SUBL  R8, R10
	CMPL  R10, (R13)(R9*4)
	JGT   done

	// Protocol, ports, and the first word of the addresses.
	SHRQ  $48, R8
	XORL  search_proto(SI), R8
	MOVL  flow_ports(AX)(BX*4), R9
	XORL  search_ports(SI), R9
	ORL   R9, R8
	MOVQ  search_addr(SI), R10
	TESTL DX, DX
	JNZ   long
	XORQ  flow_addr(AX)(BX*8), R10
	ORQ   R10, R8
	JNZ   done

found:
	MOVQ AX, (R15)(R11*8)
	MOVQ R11, R9
	SHLQ $5, R9
	ADDQ rewrites_base+56(FP), R9
	MOVQ search_family(SI), R8
	MOVQ R8, rewrite_family(R9)

	// The delta, its complement on the reply side, both halves in the order of the packet.
	MOVL   search_slot(SI), BX
	SARL   $31, BX
	MOVL   flow_delta(AX), R8
	XORL   BX, R8
	BSWAPL R8
	ROLL   $16, R8
	MOVL   R8, rewrite_delta(R9)

	// The reverse of the other side's tuple.
	INCL   BX
	MOVL   flow_ports(AX)(BX*4), R8
	ROLL   $16, R8
	BSWAPL R8
	MOVL   R8, rewrite_ports(R9)
	TESTL  DX, DX
	JZ     short
	SHLL   $2, BX

short:
	LEAQ flow_addr(AX)(BX*8), R8
	MOVQ R8, rewrite_addrs(R9)
	INCQ R11
	ADDQ $search_size, SI
	JMP  next

long:
	SHLL $5, BX
	XORQ flow_addr(AX)(BX*1), R10
	ORQ  R10, R8
	MOVQ search_addr+8(SI), R10
	XORQ flow_addr+8(AX)(BX*1), R10
	ORQ  R10, R8
	MOVQ search_addr+16(SI), R10
	XORQ flow_addr+16(AX)(BX*1), R10
	ORQ  R10, R8
	MOVQ search_addr+24(SI), R10
	XORQ flow_addr+24(AX)(BX*1), R10
	ORQ  R10, R8
	JZ   found

done:
	MOVQ R11, ret+96(FP)
	RET
