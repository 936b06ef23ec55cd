// SPDX-License-Identifier: MIT
//
// Exception and interrupt entry: 256 stubs of 16 bytes, which make every frame look alike, and one common part. The
// frame is os::trap_frame. The kernel has no user mode, so GS is always the kernel's and no SWAPGS is needed.

        .section .text, "ax"
        .code64

        .globl  trap_stubs
        .align  16
trap_stubs:
        .set    vector, 0
        .rept   256
        .align  16
        // #DF, #TS, #NP, #SS, #GP, #PF, #AC, #CP, #VC and #SX push an error code; the others get a zero.
        .if     vector > 31 || ((1 << vector) & 0x60227d00) == 0
        pushq   $0
        .endif
        pushq   $vector
        jmp     trap_common
        .set    vector, vector + 1
        .endr

        .align  16
trap_common:
        pushq   %rax
        pushq   %rbx
        pushq   %rcx
        pushq   %rdx
        pushq   %rsi
        pushq   %rdi
        pushq   %rbp
        pushq   %r8
        pushq   %r9
        pushq   %r10
        pushq   %r11
        pushq   %r12
        pushq   %r13
        pushq   %r14
        pushq   %r15
        cld
        movq    %rsp, %rdi                      // 176 bytes below a 16-byte boundary: aligned for the call
        call    os_trap
        popq    %r15
        popq    %r14
        popq    %r13
        popq    %r12
        popq    %r11
        popq    %r10
        popq    %r9
        popq    %r8
        popq    %rbp
        popq    %rdi
        popq    %rsi
        popq    %rdx
        popq    %rcx
        popq    %rbx
        popq    %rax
        addq    $16, %rsp                       // vector and error code
        iretq

// bool os_attempt_run(void (*function)(void*), void* argument, os::attempt_record* record)
//
// Calls function(argument). If that faults, os_trap() resumes at os_attempt_fault with RSP from the record, so that
// this function returns true with the caller's registers, however deep the fault was. The layout of the record and the
// offset in os::per_cpu are asserted in os/attempt.cpp.
        .set    per_cpu_attempt, 16
        .set    record_previous, 0
        .set    record_stack, 8
        .globl  os_attempt_run, os_attempt_fault
        .align  16
os_attempt_run:
        pushq   %rbp
        pushq   %rbx
        pushq   %r12
        pushq   %r13
        pushq   %r14
        pushq   %r15
        pushq   %rdx
        movq    %gs:per_cpu_attempt, %rax
        movq    %rax, record_previous(%rdx)
        movq    %rsp, record_stack(%rdx)
        movq    %rdx, %gs:per_cpu_attempt
        movq    %rdi, %rax
        movq    %rsi, %rdi
        call    *%rax
        xorl    %eax, %eax
        jmp     1f
os_attempt_fault:
        movl    $1, %eax
1:      popq    %rdx
        movq    record_previous(%rdx), %rcx
        movq    %rcx, %gs:per_cpu_attempt
        popq    %r15
        popq    %r14
        popq    %r13
        popq    %r12
        popq    %rbx
        popq    %rbp
        ret

        .section .note.GNU-stack, "", @progbits
