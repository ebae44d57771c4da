//go:build !noasm && !race

#include "go_asm.h"
#include "textflag.h"

// func fetchBuckets(geo *geometries, secret *HashKey, group []Search)
//
// Computes hash4 or hash6, and the home in the index. A packet that is not plain has the same home
// for any hash.
TEXT ·fetchBuckets(SB), NOSPLIT, $0-40
	MOVQ  geo+0(FP), DI
	MOVQ  secret+8(FP), R8
	MOVQ  group_base+16(FP), SI
	MOVQ  group_len+24(FP), CX
	TESTQ CX, CX
	JZ    done

next:
	MOVL (Search_Plain+plain_Family)(SI), BX
	MOVL (Search_Plain+plain_Ports)(SI), R9
	SHLQ $8, R9
	MOVL (Search_Plain+plain_Proto)(SI), DX
	ORQ  DX, R9
	MOVQ (Search_Plain+plain_Addr)(SI), AX
	XORQ 0(R8), AX
	CMPL BX, $const_plainIPv6
	JEQ  six
	XORQ 8(R8), R9
	MULQ R9
	XORQ 16(R8), AX
	XORQ 24(R8), DX

fold:
	MULQ       DX
	XORQ       DX, AX
	MOVQ       AX, Search_hash(SI)
	SHRQ       $32, AX
	SHLQ       $const_geometryShift, BX
	IMULQ      geometry_homes(DI)(BX*1), AX
	SHRQ       $32, AX
	SHLQ       $const_bucketShift, AX
	ADDQ       geometry_buckets(DI)(BX*1), AX
	PREFETCHT0 (AX)
	ADDQ       $Search__size, SI
	DECQ       CX
	JNZ        next

done:
	RET

six:
	MOVQ (Search_Plain+plain_Addr+8)(SI), DX
	XORQ 8(R8), DX
	MULQ DX
	MOVQ AX, R10
	MOVQ DX, R11
	MOVQ (Search_Plain+plain_Addr+16)(SI), AX
	XORQ 16(R8), AX
	MOVQ (Search_Plain+plain_Addr+24)(SI), DX
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
// After PCMPEQB a tag that matches is a byte of 0xff; ctl's low 11 bits select the slots that are
// members. The 16 bytes that are compared begin with the tags; the mask cuts off the rest.
TEXT ·fetchFlows(SB), NOSPLIT, $0-32
	MOVQ  geo+0(FP), DI
	MOVQ  group_base+8(FP), SI
	MOVQ  group_len+16(FP), CX
	XORL  R11, R11
	MOVQ  $0x0101010101010101, R12
	TESTQ CX, CX
	JZ    done

next:
	MOVL       (Search_Plain+plain_Family)(SI), DX
	MOVL       (Search_hash+4)(SI), AX
	SHLQ       $const_geometryShift, DX
	IMULQ      geometry_homes(DI)(DX*1), AX
	SHRQ       $32, AX
	SHLQ       $const_bucketShift, AX
	ADDQ       geometry_buckets(DI)(DX*1), AX
	MOVBLZX    Search_hash(SI), BX
	IMULQ      R12, BX
	MOVQ       BX, X0
	PUNPCKLQDQ X0, X0
	MOVOU      bucket_tagsLo(AX), X1
	PCMPEQB    X1, X0
	PMOVMSKB   X0, BX
	ANDL       bucket_ctl(AX), BX
	XORL       R9, R9
	ANDL       $const_slotMask, BX
	BSFL       BX, R9
	MOVL       bucket_slots(AX)(R9*4), R10
	TESTL      BX, BX
	CMOVLEQ    R11, R10
	MOVL       R10, Search_slot(SI)

	// The flow's first and last cache line; for IPv4 they are the same.
	ANDL       $(1<<const_slotSide-1), R10
	MOVQ       geometry_recordSize(DI)(DX*1), R8
	IMULQ      R8, R10
	ADDQ       geometry_records(DI)(DX*1), R10
	PREFETCHT0 (R10)
	PREFETCHT0 -64(R10)(R8*1)
	ADDQ       $Search__size, SI
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
	MOVL  Search_slot(SI), AX
	MOVL  (Search_Plain+plain_Family)(SI), DX
	MOVL  AX, BX
	SHRL  $const_slotSide, BX // side
	ANDL  $(1<<const_slotSide-1), AX
	SHLQ  $const_geometryShift, DX
	IMULQ geometry_recordSize(DI)(DX*1), AX
	ADDQ  geometry_records(DI)(DX*1), AX

	// The age, compared with the maximum in steady.
	MOVQ  Flow_meta(AX), R8
	MOVQ  R8, R9
	SHRQ  $const_metaStateShift, R9
	MOVBLZX R9, R9
	MOVL  BX, R10
	SHLL  $8, R10
	ADDL  R10, R9
	MOVL  R12, R10
	SUBL  R8, R10
	CMPL  R10, (R13)(R9*4)
	JGT   done

	// Protocol, ports, and the first word of the addresses.
	SHRQ  $const_metaProtoShift, R8
	XORL  (Search_Plain+plain_Proto)(SI), R8
	MOVL  Flow_ports(AX)(BX*4), R9
	XORL  (Search_Plain+plain_Ports)(SI), R9
	ORL   R9, R8
	MOVQ  (Search_Plain+plain_Addr)(SI), R10
	TESTL DX, DX
	JNZ   long
	XORQ  record4_addr(AX)(BX*8), R10
	ORQ   R10, R8
	JNZ   done

found:
	MOVQ AX, (R15)(R11*8)
	MOVQ R11, R9
	SHLQ $const_rewriteShift, R9
	ADDQ rewrites_base+56(FP), R9
	MOVQ (Search_Plain+plain_Family)(SI), R8
	MOVQ R8, rewrite_Family(R9)

	// The delta, on the reply side its complement, both halves in network byte order.
	MOVL   Search_slot(SI), BX
	SARL   $const_slotSide, BX
	MOVL   Flow_delta(AX), R8
	XORL   BX, R8
	BSWAPL R8
	ROLL   $16, R8
	MOVL   R8, rewrite_IP(R9)

	// The reverse of the other side's tuple.
	INCL   BX
	MOVL   Flow_ports(AX)(BX*4), R8
	ROLL   $16, R8
	BSWAPL R8
	MOVL   R8, rewrite_Ports(R9)
	TESTL  DX, DX
	JZ     short
	SHLL   $2, BX

short:
	LEAQ record4_addr(AX)(BX*8), R8
	MOVQ R8, rewrite_Addrs(R9)
	INCQ R11
	ADDQ $Search__size, SI
	JMP  next

long:
	SHLL $5, BX
	XORQ record6_addr(AX)(BX*1), R10
	ORQ  R10, R8
	MOVQ (Search_Plain+plain_Addr+8)(SI), R10
	XORQ (record6_addr+8)(AX)(BX*1), R10
	ORQ  R10, R8
	MOVQ (Search_Plain+plain_Addr+16)(SI), R10
	XORQ (record6_addr+16)(AX)(BX*1), R10
	ORQ  R10, R8
	MOVQ (Search_Plain+plain_Addr+24)(SI), R10
	XORQ (record6_addr+24)(AX)(BX*1), R10
	ORQ  R10, R8
	JZ   found

done:
	MOVQ R11, ret+96(FP)
	RET
