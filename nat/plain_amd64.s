//go:build !noasm && !race

#include "go_asm.h"
#include "textflag.h"

// func translatePlain(m *header.Memory, frames []header.Frame, rewrites []header.Rewrite, ahead []header.Frame,
//	both bool)
//
//	SI, DI, CX  frame, base, frames left
//	R15         rewrites
//	BX, R11     frame ahead, number of frames ahead that are left
//	R8          the packet, and then its transport header
TEXT ·translatePlain(SB), NOSPLIT, $0-81
	MOVQ  m+0(FP), DI
	MOVQ  memory_base(DI), DI
	MOVQ  frames_base+8(FP), SI
	MOVQ  frames_len+16(FP), CX
	MOVQ  rewrites_base+32(FP), R15
	MOVQ  ahead_base+56(FP), BX
	MOVQ  ahead_len+64(FP), R11
	TESTQ CX, CX
	JZ    done

next:
	TESTL $1, CX
	JNZ   body
	DECQ  R11
	JLT   body
	MOVQ  frame_Addr(BX), AX
	ADDQ  $frame__size, BX
	BYTE  $0x0f; BYTE $0x0d; BYTE $0x0c; BYTE $0x07 // PREFETCHW (DI)(AX*1), which the assembler does not know
	CMPB  both+80(FP), $0
	JEQ   body
	BYTE  $0x0f; BYTE $0x0d; BYTE $0x4c; BYTE $0x07; BYTE $0x40 // PREFETCHW 64(DI)(AX*1)

body:
	MOVQ frame_Addr(SI), R8
	ADDQ DI, R8
	MOVQ rewrite_MACs(R15), R9
	MOVQ rewrite_Addrs(R15), R10
	MOVQ 0(R9), AX
	MOVL 8(R9), DX
	MOVQ AX, 0(R8)
	MOVL DX, 8(R8)
	CMPL rewrite_Family(R15), $const_plainIPv4
	JNE  six

	// The TTL is the low byte of a word of the header: a decrement adds ^1 to the sum.
	DECB    22(R8)
	MOVWLZX 24(R8), DX
	NOTL    DX
	ADDW    rewrite_IP(R15), DX
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
	MOVL    rewrite_Ports(R15), AX
	MOVL    AX, 0(R8)
	MOVL    rewrite_Proto(R15), R9
	ANDL    $const_checksumBits, R9
	XORL    $const_checksumBits, R9
	MOVWLZX (R8)(R9*1), AX
	MOVL    AX, DX
	XORL    $0xffff, DX
	ADDW    rewrite_L4(R15), DX
	ADCW    $0, DX
	XORL    $0xffff, DX
	JEQ     zero
	TESTL   AX, AX
	JEQ     zero

store:
	MOVW DX, (R8)(R9*1)
	ADDQ $frame__size, SI
	ADDQ $rewrite__size, R15
	DECQ CX
	JNZ  next

done:
	RET

zero:
	// A datagram without a checksum stays without one; another must not appear to have none (RFC
	// 768). TCP has no such rule.
	CMPL rewrite_Proto(R15), $const_protoUDP
	JNE  store
	NEGL AX
	SBBL DX, DX                    // all ones unless there was no checksum
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
