//go:build !noasm && !race

#include "go_asm.h"
#include "textflag.h"

// func inspect(m *Memory, frames, ahead []Frame, both bool, out *Plain, stride uintptr, t *tables) (bytes uint64,
//	v6 bool)
//
// It is checkIP4, sum4, checkIP6 and checkTransport, step by step: a verdict whose sign bit means
// not plain, and few branches.
//
//	SI, DI, CX  frame, base, frames left
//	R15, BX     out, tables
//	R8, R9      the packet, and then its transport header; bytes of the frame
//	R10         the first header bytes, and then the number of transport bytes
//	R11, R12    protocol, verdict
//	DX          the end of the packet
//	R14         frame ahead
TEXT ·inspect(SB), NOSPLIT, $0-97
	MOVQ m+0(FP), AX
	MOVQ Memory_base(AX), DI
	MOVQ Memory_last(AX), AX
	MOVQ AX, m+0(FP)       // the last address with a whole window
	MOVQ frames_base+8(FP), SI
	MOVQ frames_len+16(FP), CX
	MOVQ ahead_base+32(FP), R14
	MOVQ out+64(FP), R15
	MOVQ t+80(FP), BX
	MOVQ $0, bytes+88(FP)
	MOVB $0, v6+96(FP)
	TESTQ CX, CX
	JZ   done

next:
	MOVQ Frame_Addr(SI), R8
	MOVL Frame_Len(SI), R9
	ADDQ R9, bytes+88(FP)

	// Two frames of the group are checked for each frame ahead.
	TESTL $1, CX
	JNZ   body
	DECQ  ahead_len+40(FP)
	JLT   body
	MOVQ  Frame_Addr(R14), AX
	ADDQ  $Frame__size, R14
	BYTE  $0x0f; BYTE $0x0d; BYTE $0x0c; BYTE $0x07 // PREFETCHW (DI)(AX*1), which the assembler does not know
	CMPB  both+56(FP), $0
	JEQ   body
	BYTE  $0x0f; BYTE $0x0d; BYTE $0x4c; BYTE $0x07; BYTE $0x40 // PREFETCHW 64(DI)(AX*1)

body:
	CMPQ    R8, m+0(FP)
	JHI     none
	ADDQ    DI, R8
	MOVQ    12(R8), R10    // EtherType and six bytes of the IP header
	MOVBLZX 0(R8), R12
	ANDL    $1, R12        // a group's address
	CMPW    R10, $0x0008
	JNE     six

	// The sum of the IP header's words, modulo 2^64 - 1, 2^32 - 1 and 2^16 - 1: the complement is 0
	// if the checksum is right.
	MOVQ 20(R8), R11
	MOVQ 26(R8), AX        // addresses
	MOVQ R10, DX
	SHRQ $16, DX
	MOVQ R11, R13
	SHLQ $16, R13
	ADDQ R13, DX
	ADCQ AX, DX
	ADCQ $0, DX
	MOVQ DX, R13
	SHRQ $32, R13
	ADDL R13, DX
	ADCL $0, DX
	MOVL DX, R13
	ROLL $16, R13
	ADDL R13, DX
	ADCL $0, DX
	NOTL DX
	ORL  DX, R12

	BSWAPQ AX
	MOVQ   AX, Plain_Addr(R15)
	MOVL   34(R8), AX
	BSWAPL AX
	MOVL   AX, Plain_Ports(R15)
	MOVL   $const_PlainIPv4, Plain_Family(R15)

	// Version, header length, EtherType; no fragment.
	MOVL R10, DX
	XORL $0x450008, DX
	ANDL $0xffffff, DX
	ORL  DX, R12
	MOVL R11, DX
	ANDL $0xff3f, DX
	ORL  DX, R12
	NEGL R12
	SBBL R12, R12          // all ones unless the sum was right

	// TTL, protocol, and the end of the packet.
	SHRL    $16, R11
	MOVBLZX R11, AX
	SUBL    $2, AX
	ORL     AX, R12
	SHRL    $8, R11
	SHRQ    $32, R10
	ROLW    $8, R10
	MOVWLZX R10, R10
	LEAL    const_EthernetBytes(R10), DX
	SUBL    DX, R9
	ORL     R9, R12
	SUBL    $const_IPv4Bytes, R10
	MOVL    (tables_transports+plainTransport_tcp)(BX)(R11*plainTransport__size), R9
	ADDQ    $const_Plain4Bytes, R8

transport:
	// R9 is all ones for TCP. The length is the length of the TCP header, or the length field of
	// UDP.
	MOVL    R11, Plain_Proto(R15)
	MOVWLZX 4(R8), AX
	ROLW    $8, AX
	MOVBLZX 12(R8), R13
	ANDL    $0xf0, R13
	SHRL    $2, R13
	XORL    AX, R13
	ANDL    R9, R13
	XORL    AX, R13
	SUBL    R13, R10
	ORL     R10, R12
	SUBL    (tables_transports+plainTransport_least)(BX)(R11*plainTransport__size), R13
	ORL     R13, R12
	MOVBLZX 13(R8), AX
	MOVL    tables_flags(BX)(AX*4), AX
	ANDL    R9, AX
	ORL     AX, R12
	JMI     none
	DECL    AX             // 0 if the segment opens or closes, all ones if it does not
	ANDL    DX, AX
	MOVL    AX, Plain_End(R15)

advance:
	ADDQ $Frame__size, SI
	ADDQ stride+72(FP), R15
	DECQ CX
	JNZ  next

done:
	RET

none:
	MOVL $const_NotPlain, Plain_Family(R15)
	MOVL $0, Plain_End(R15)
	JMP  advance

six:
	CMPW R10, $0xdd86
	JNE  none
	MOVB $1, v6+96(FP)

	// Version, hop limit, protocol, and the end of the packet.
	MOVL    R10, AX
	XORL    $0x60dd86, AX
	ANDL    $0xf0ffff, AX
	ORL     AX, R12
	NEGL    R12
	MOVBLZX 21(R8), AX
	SUBL    $2, AX
	ORL     AX, R12
	MOVBLZX 20(R8), R11
	SHRQ    $48, R10
	ROLW    $8, R10
	LEAL    const_Plain6Bytes(R10), DX
	SUBL    DX, R9
	ORL     R9, R12

	MOVQ   22(R8), AX
	BSWAPQ AX
	MOVQ   AX, Plain_Addr(R15)
	MOVQ   30(R8), AX
	BSWAPQ AX
	MOVQ   AX, Plain_Addr+8(R15)
	MOVQ   38(R8), AX
	BSWAPQ AX
	MOVQ   AX, Plain_Addr+16(R15)
	MOVQ   46(R8), AX
	BSWAPQ AX
	MOVQ   AX, Plain_Addr+24(R15)
	MOVL   54(R8), AX
	BSWAPL AX
	MOVL   AX, Plain_Ports(R15)
	MOVL   $1, Plain_Family(R15)
	ADDQ   $54, R8

	MOVL (tables_transports+plainTransport_tcp)(BX)(R11*plainTransport__size), R9
	JMP  transport
