//go:build !noasm

#include "textflag.h"

// func Read(p *byte)
TEXT ·Read(SB), NOSPLIT, $0-8
	MOVD p+0(FP), R0
	PRFM (R0), PLDL1KEEP
	RET

// func WriteAll(base *byte, offsets *uint64, stride uintptr, n int)
TEXT ·WriteAll(SB), NOSPLIT, $0-32
	MOVD base+0(FP), R0
	MOVD offsets+8(FP), R1
	MOVD stride+16(FP), R2
	MOVD n+24(FP), R3

next:
	MOVD (R1), R4
	ADD  R0, R4, R4
	PRFM (R4), PSTL1KEEP
	ADD  R2, R1, R1
	SUBS $1, R3, R3
	BGT  next
	RET
