#include "textflag.h"

// func flushLines(first *byte, stride, n uintptr)
// CLFLUSH writes a line back and takes it out of every cache (Intel SDM volume 2A);
// the fences keep what is timed behind it.
TEXT ·flushLines(SB), NOSPLIT, $0-24
	MOVQ first+0(FP), AX
	MOVQ stride+8(FP), BX
	MOVQ n+16(FP), CX
	MFENCE
	TESTQ CX, CX
	JZ    done
loop:
	CLFLUSH (AX)
	ADDQ  BX, AX
	DECQ  CX
	JNZ   loop
done:
	MFENCE
	RET
