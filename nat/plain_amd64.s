//go:build !noasm && !race

#include "textflag.h"

// Offsets in header.Rewrite (rewrite.go asserts them).
#define rewrite_macs   0
#define rewrite_addrs  8
#define rewrite_ports  16
#define rewrite_ip     20
#define rewrite_l4     22
#define rewrite_family 24
#define rewrite_proto  28
#define rewrite_size   32

// func translatePlain(m *header.Memory, frames []header.Frame, rewrites []header.Rewrite, ends []header.Frame)
//
//	SI, DI, CX  frame, base, frames left
//	R15         rewrites
//	BX, R11     ends, how many are left
//	R8          the packet, and then its transport header
TEXT ·translatePlain(SB), NOSPLIT, $0-80
	MOVQ  m+0(FP), DI
	MOVQ  0(DI), DI
	MOVQ  frames_base+8(FP), SI
	MOVQ  frames_len+16(FP), CX
	MOVQ  rewrites_base+32(FP), R15
	MOVQ  ends_base+56(FP), BX
	MOVQ  ends_len+64(FP), R11
	TESTQ CX, CX
	JZ    done

next:
	DECQ R11
	JLT  body
	MOVQ (BX), AX
	ADDQ $16, BX
	BYTE $0x0f; BYTE $0x0d; BYTE $0x4c; BYTE $0x07; BYTE $0x40 // PREFETCHW 64(DI)(AX*1), which the assembler does not know

body:
	MOVQ (SI), R8
	ADDQ DI, R8
	MOVQ rewrite_macs(R15), R9
	MOVQ rewrite_addrs(R15), R10
	MOVQ 0(R9), AX
	MOVL 8(R9), DX
	MOVQ AX, 0(R8)
	MOVL DX, 8(R8)
	CMPL rewrite_family(R15), $0
	JNE  six

	// The TTL is the low byte of a word of the header: one less adds ^1 to the sum.
	DECB    22(R8)
	MOVWLZX 24(R8), DX
	NOTL    DX
	ADDW    rewrite_ip(R15), DX
	ADCW    $-2, DX
	ADCW    $0, DX
	NOTL    DX
	MOVW    DX, 24(R8)
	MOVQ    0(R10), AX
	ROLQ    $32, AX
	BSWAPQ  AX
	MOVQ    AX, 26(R8)
	ADDQ    $34, R8

transport:
	MOVL    rewrite_ports(R15), AX
	MOVL    AX, 0(R8)
	MOVL    rewrite_proto(R15), R9
	ANDL    $22, R9                // checksumBits
	XORL    $22, R9
	MOVWLZX (R8)(R9*1), AX
	MOVL    AX, DX
	XORL    $0xffff, DX
	ADDW    rewrite_l4(R15), DX
	ADCW    $0, DX
	XORL    $0xffff, DX
	JEQ     zero
	TESTL   AX, AX
	JEQ     zero

store:
	MOVW DX, (R8)(R9*1)
	ADDQ $16, SI
	ADDQ $rewrite_size, R15
	DECQ CX
	JNZ  next

done:
	RET

zero:
	// A datagram had none and has none now, or must not seem to have none (RFC 768). TCP has no such rule.
	CMPL rewrite_proto(R15), $17
	JNE  store
	NEGL AX
	SBBL DX, DX                    // all ones unless there was none
	JMP  store

six:
	DECB   21(R8)
	MOVQ   16(R10), AX
	BSWAPQ AX
	MOVQ   AX, 22(R8)
	MOVQ   24(R10), AX
	BSWAPQ AX
	MOVQ   AX, 30(R8)
	MOVQ   0(R10), AX
	BSWAPQ AX
	MOVQ   AX, 38(R8)
	MOVQ   8(R10), AX
	BSWAPQ AX
	MOVQ   AX, 46(R8)
	ADDQ   $54, R8
	JMP    transport
