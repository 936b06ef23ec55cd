// SPDX-License-Identifier: MIT
//
// The guest in tools/lib/kvm.sh (write_kvm_probe), whole file, headers too: assembled and linked as a flat binary at 0x100000
// it must be the same bytes. It exits with 21 after 30 million instructions: 10 ms where the CPU runs them.

    .text
    .globl _start
file:
    .byte 0x7f, 'E', 'L', 'F', 2, 1, 1, 0
    .quad 0
    .short 2, 62                // ET_EXEC, EM_X86_64
    .long 1
    .quad _start, 64, 0         // entry, program headers, no sections
    .long 0
    .short 64, 56, 2, 0, 0, 0

    .long 1, 5                  // PT_LOAD, R E
    .quad 0, file, file, end - file, end - file, 4096

    .long 4, 4                  // PT_NOTE, R
    .quad note - file, note, note, note_end - note, note_end - note, 4

note:
    .long 4, 4, 18              // XEN_ELFNOTE_PHYS32_ENTRY
    .asciz "Xen"
    .long _start
note_end:

    .code32
_start:
    mov $10000000, %ecx
1:  nop
    dec %ecx
    jnz 1b
    mov $21, %eax
    out %eax, $0xf4
2:  hlt
    jmp 2b

    .balign 16, 0xcc
end:
