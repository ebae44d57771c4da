//go:build !noasm

#include "textflag.h"

// func Read(p *byte)
TEXT ·Read(SB), NOSPLIT, $0-8
	MOVD p+0(FP), R0
	PRFM (R0), PLDL1KEEP
	RET

// func Write(p *byte)
TEXT ·Write(SB), NOSPLIT, $0-8
	MOVD p+0(FP), R0
	PRFM (R0), PSTL1KEEP
	RET
