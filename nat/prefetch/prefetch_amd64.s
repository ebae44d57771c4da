//go:build !noasm

#include "textflag.h"

// func Read(p *byte)
TEXT ·Read(SB), NOSPLIT, $0-8
	MOVQ p+0(FP), AX
	PREFETCHT0 (AX)
	RET

// func WriteAll(base *byte, offsets *uint64, stride uintptr, n int)
TEXT ·WriteAll(SB), NOSPLIT, $0-32
	MOVQ base+0(FP), DI
	MOVQ offsets+8(FP), SI
	MOVQ stride+16(FP), DX
	MOVQ n+24(FP), CX

next:
	MOVQ (SI), AX
	ADDQ DI, AX
	BYTE $0x0f; BYTE $0x0d; BYTE $0x08 // PREFETCHW (AX), which the assembler does not know
	ADDQ DX, SI
	DECQ CX
	JG   next
	RET
