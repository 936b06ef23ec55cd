// SPDX-License-Identifier: MIT
//
// The smallest guests that tools/run-guest can be tested with. An ELF64 with a PVH note: the loader enters pvh_start in
// 32-bit protected mode, paging off, interrupts off, EBX = the physical address of hvm_start_info.
//
//   -DGUEST_HELLO     prints the command line and what the MADT holds, exits with EXIT_VALUE (default 0)
//   -DGUEST_HANG      prints one line, then spins with interrupts off
//   -DGUEST_FAULT     prints one line, then triple-faults (an invalid opcode with an empty IDT)
//   -DGUEST_TICK      prints "tick" for ever, with a pause between two: is the output live?
//   -DGUEST_BYTES     sends all 256 byte values, to see that none is changed on the way out
//   -DGUEST_BULK      sends 64 KiB of numbered lines
//   -DGUEST_COUNT     prints the TSC ticks that 102 instructions took

#ifndef EXIT_VALUE
#define EXIT_VALUE 0
#endif

    .section .note.Xen, "a", @note
    .align 4
    .long 4, 4, 18              // namesz, descsz, XEN_ELFNOTE_PHYS32_ENTRY
    .asciz "Xen"
    .long pvh_start

    .text
    .code32
    .globl pvh_start
pvh_start:
    mov $stack_top, %esp
    cld
    mov %ebx, %ebp              // hvm_start_info

    // COM1 at 115200 8n1: QEMU does not care, other VMMs might.
    mov $0x3fb, %edx
    mov $0x03, %al
    out %al, %dx

#if defined(GUEST_HELLO)
    mov $text_hello, %esi
    call puts
    mov 24(%ebp), %esi          // cmdline_paddr
    test %esi, %esi
    jz 1f
    call puts
1:  mov $text_end, %esi
    call puts

    mov 32(%ebp), %eax          // rsdp_paddr
    mov $text_rsdp, %esi
    call put_hex
    mov 32(%ebp), %eax
    test %eax, %eax
    jz done
    // QEMU's microvm gives revision 2 with an XSDT only (the RSDT address is 0); every table is below 4 GiB.
    mov 24(%eax), %edi          // XSDT
    mov 4(%edi), %ecx
    sub $36, %ecx
    shr $3, %ecx                // entries
    add $36, %edi
2:  mov (%edi), %ebx
    cmpl $0x43495041, (%ebx)    // "APIC"
    je 3f
    add $8, %edi
    loop 2b
    jmp done
3:  mov 4(%ebx), %edi
    add %ebx, %edi              // end of the MADT
    add $44, %ebx
    xor %eax, %eax              // CPUs
    xor %edx, %edx              // highest APIC id
4:  cmp %edi, %ebx
    jae 7f
    cmpb $0, (%ebx)             // local APIC: id at 3, flags at 4
    jne 5f
    testl $1, 4(%ebx)
    jz 6f
    inc %eax
    movzbl 3(%ebx), %ecx
    mov %ecx, %edx
    jmp 6f
5:  cmpb $9, (%ebx)             // local x2APIC: id at 4, flags at 8
    jne 6f
    testl $1, 8(%ebx)
    jz 6f
    inc %eax
    mov 4(%ebx), %edx
6:  movzbl 1(%ebx), %ecx
    add %ecx, %ebx
    jmp 4b
7:  push %edx
    mov $text_cpus, %esi
    call put_hex
    pop %eax
    mov $text_last, %esi
    call put_hex
done:
    mov $EXIT_VALUE, %eax
    out %eax, $0xf4

#elif defined(GUEST_HANG)
    mov $text_hang, %esi
    call puts

#elif defined(GUEST_FAULT)
    mov $text_fault, %esi
    call puts
    lidt no_idt
    ud2

#elif defined(GUEST_TICK)
1:  mov $text_tick, %esi
    call puts
    mov $3000000, %ecx
2:  pause
    loop 2b
    jmp 1b

#elif defined(GUEST_BYTES)
    xor %ebx, %ebx
1:  mov %bl, %al
    call putc
    inc %bl
    jnz 1b
    xor %eax, %eax
    out %eax, $0xf4

#elif defined(GUEST_BULK)
    xor %ebx, %ebx
1:  mov %ebx, %eax
    mov $text_line, %esi
    call put_hex
    inc %ebx
    cmp $4096, %ebx             // 4096 lines of 16 bytes
    jb 1b
    xor %eax, %eax
    out %eax, $0xf4

#elif defined(GUEST_COUNT)
    rdtsc
    mov %eax, %ebx
    .rept 100
    nop
    .endr
    rdtsc
    sub %ebx, %eax
    mov $text_ticks, %esi
    call put_hex
    xor %eax, %eax
    out %eax, $0xf4
#endif

stop:
    pause
    jmp stop

// AL -> COM1
putc:
    push %edx
    push %eax
    mov $0x3fd, %edx
1:  in %dx, %al
    test $0x20, %al
    jz 1b
    pop %eax
    mov $0x3f8, %edx
    out %al, %dx
    pop %edx
    ret

// The string at ESI
puts:
1:  lodsb
    test %al, %al
    jz 2f
    call putc
    jmp 1b
2:  ret

// The string at ESI, EAX as 8 hex digits, a newline
put_hex:
    push %ecx
    push %eax
    call puts
    pop %eax
    mov $8, %ecx
1:  rol $4, %eax
    push %eax
    and $15, %al
    add $'0', %al
    cmp $'9', %al
    jbe 2f
    add $('a' - '0' - 10), %al
2:  call putc
    pop %eax
    loop 1b
    mov $'\n', %al
    call putc
    pop %ecx
    ret

    .section .rodata
text_hello: .asciz "hello: cmdline=["
text_end:   .asciz "]\n"
text_rsdp:  .asciz "rsdp=0x"
text_cpus:  .asciz "madt cpus=0x"
text_last:  .asciz "madt last apic id=0x"
text_hang:  .asciz "about to hang\n"
text_fault: .asciz "about to triple-fault\n"
text_tick:  .asciz "tick\n"
text_line:  .asciz "line 0x"
text_ticks: .asciz "ticks=0x"
no_idt:     .word 0
            .long 0

    .bss
    .align 16
    .skip 4096
stack_top:
