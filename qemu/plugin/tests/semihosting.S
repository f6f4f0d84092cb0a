// AArch64, the machine virt with two virtual CPUs: the second one calls functions without end, the first one ends QEMU.
// With OWN_RECORDS, the first one calls a function, too. With SYSTEM_OFF, it has the machine turned off.
.globl _start
_start:
	ldr x9, =stack0
#ifdef OWN_RECORDS
	mov sp, x9
	bl inner
#endif
	// CPU_ON of PSCI: processor 1, at `second`.
	ldr x0, =0xC4000003
	mov x1, #1
	adr x2, second
	mov x3, #0
	hvc #0
	// Until the second one has called often.
	ldr x3, =rounds
	ldr x4, =100000
1:
	ldr x5, [x3]
	cmp x5, x4
	b.lo 1b
#ifdef SYSTEM_OFF
	// Of PSCI.
	ldr x0, =0x84000008
	hvc #0
#endif
	// SYS_EXIT of semihosting.
	mov w0, #0x18
	ldr x1, =reason
	hlt #0xf000
2:
	b 2b

second:
	ldr x9, =stack1
	mov sp, x9
	ldr x3, =rounds
	mov x5, #0
3:
	bl outer
	add x5, x5, #1
	str x5, [x3]
	b 3b

outer:
	stp x29, x30, [sp, #-16]!
	bl inner
	ldp x29, x30, [sp], #16
	ret
inner:
	ret

.align 4
reason:
	// ADP_Stopped_ApplicationExit, status 0
	.quad 0x20026, 0
.bss
.align 12
rounds:
.space 4096
stack0:
.space 4096
stack1:
