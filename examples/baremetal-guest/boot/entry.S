// SPDX-License-Identifier: MIT
//
// From the loader to C++ on the first CPU.
//
// Two loaders, one state: 32-bit protected mode with flat segments, paging and interrupts off, EBX = address of what
// the loader has to say. PVH loaders (QEMU, Firecracker, cloud-hypervisor) find pvh_start in the note; multiboot 2
// (GRUB) finds multiboot2_start in its header. [pvh] [multiboot2 3.3]
//
// Each ends in os_start(protocol, info) in 64-bit mode, on boot_stacks, with the first 4 GiB mapped one to one.

        .set    selector_code64, 0x08
        .set    selector_data,   0x10
        .set    selector_code32, 0x18

        .set    msr_efer,       0xc0000080
        .set    efer_lme,       1 << 8
        .set    cr4_pae,        1 << 5
        .set    cr0_long_mode,  0x80010033      // PG, WP, NE, ET, MP, PE; caches on (CD and NW are set after INIT)

        .set    page_present_write,       0x3
        .set    page_present_write_large, 0x83

        .set    boot_stack_end, 0x5000          // offset in boot_stacks; os/per_cpu.hpp asserts it

// --- what the loaders look for -----------------------------------------------------------------------------------

        .section .note.pvh, "a", @note
        .align  4
        .long   4                               // size of the name
        .long   8                               // size of the value
        .long   18                              // XEN_ELFNOTE_PHYS32_ENTRY
        .asciz  "Xen"
        .quad   pvh_start

        .set    multiboot2_magic, 0xe85250d6
        .set    multiboot2_size,  16 + 16 + 8
        .section .multiboot2, "a"
        .align  8
        .long   multiboot2_magic
        .long   0                               // i386: entered in 32-bit protected mode
        .long   multiboot2_size
        .long   0x100000000 - (multiboot2_magic + multiboot2_size)
        .short  3, 0                            // tag: entry address
        .long   12
        .long   multiboot2_start
        .long   0
        .short  0, 0                            // tag: end
        .long   8

// --- 32-bit ------------------------------------------------------------------------------------------------------

        .section .text.boot, "ax"
        .code32
        .globl  pvh_start
pvh_start:
        xorl    %esi, %esi                      // boot_protocol::pvh
        jmp     start32
multiboot2_start:
        movl    $1, %esi                        // boot_protocol::multiboot2
start32:
        cli
        cld
        movl    %ebx, %edi
        movl    $(boot_stacks + boot_stack_end), %esp
        lgdt    boot_gdt_pointer
        ljmp    $selector_code32, $1f
1:      movl    $selector_data, %eax
        movl    %eax, %ds
        movl    %eax, %es
        movl    %eax, %ss

        movl    $0x80000000, %eax
        cpuid
        cmpl    $0x80000001, %eax
        jb      no_long_mode
        movl    $0x80000001, %eax
        cpuid
        testl   $(1 << 29), %edx
        jz      no_long_mode

        movl    $boot_page_map, %eax
        call    enter_long_mode
        ljmp    $selector_code64, $start64

// Paging and long mode on, with the page map at EAX. Returns in the 32-bit half of long mode.
enter_long_mode:
        movl    %eax, %cr3
        movl    %cr4, %eax
        orl     $cr4_pae, %eax
        movl    %eax, %cr4
        movl    $msr_efer, %ecx
        rdmsr
        orl     $efer_lme, %eax
        wrmsr
        movl    $cr0_long_mode, %eax
        movl    %eax, %cr0
        ret

// The one failure that has to be told before there is any C++: to the serial port, then exit code 3 (os/exit.hpp).
no_long_mode:
        movl    $no_long_mode_text, %esi
        movl    $no_long_mode_size, %ecx
        movw    $0x3f8, %dx
        rep outsb
        movb    $3, %al
        outb    %al, $0xf4
1:      hlt
        jmp     1b

        .section .rodata
no_long_mode_text:
        .ascii  "panic: this CPU has no 64-bit mode\n"
        .set    no_long_mode_size, . - no_long_mode_text

// --- 64-bit ------------------------------------------------------------------------------------------------------

        .section .text.boot, "ax"
        .code64
start64:
        movl    $(boot_stacks + boot_stack_end), %esp
        xorl    %eax, %eax
        movl    %eax, %fs
        movl    %eax, %gs
        xorl    %ebp, %ebp                      // a backtrace ends here
        movl    %edi, %eax
        movl    %esi, %edi
        movl    %eax, %esi
        call    os_start
        ud2

// --- started CPUs ------------------------------------------------------------------------------------------------

// Copied to a page below 1 MiB, where a started CPU begins in real mode with CS:IP = page:0. It uses nothing there but
// its own GDT pointer, so no address in it needs patching.
        .section .rodata
        .globl  trampoline_start, trampoline_end
        .code16
trampoline_start:
        cli
        cld
        movw    %cs, %ax
        movw    %ax, %ds
        lgdtl   trampoline_gdt_pointer - trampoline_start
        movl    %cr0, %eax
        orl     $1, %eax
        movl    %eax, %cr0
        ljmpl   $selector_code32, $started32
trampoline_gdt_pointer:
        .word   boot_gdt_end - boot_gdt - 1
        .long   boot_gdt
trampoline_end:

        .section .text.boot, "ax"
        .code32
started32:
        movl    $selector_data, %eax
        movl    %eax, %ds
        movl    %eax, %es
        movl    %eax, %ss
        // There is no stack yet, and all CPUs come through here at once: each draws a ticket and takes the stack of
        // that number. Which CPU it is, C++ asks its APIC.
        movl    $1, %edi
        lock xaddl %edi, started_tickets
        cmpl    started_limit, %edi
        jae     no_ticket
        movl    started_stacks(, %edi, 4), %esp

        // Not the kernel's own: its NX bits are reserved until EFER allows them.
        movl    $boot_page_map, %eax
        call    enter_long_mode
        ljmp    $selector_code64, $started64
no_ticket:
        hlt
        jmp     no_ticket

        .code64
started64:
        xorl    %eax, %eax
        movl    %eax, %fs
        movl    %eax, %gs
        xorl    %ebp, %ebp
        movl    %edi, %edi                      // the argument: the ticket
        movl    %esp, %esp
        call    os_start_other
        ud2

// --- data --------------------------------------------------------------------------------------------------------

        .section .data
        .align  8
boot_gdt:                                       // the selectors are those of os/descriptor_tables.cpp
        .quad   0
        .quad   0x00af9b000000ffff              // 64-bit code
        .quad   0x00cf93000000ffff              // data
        .quad   0x00cf9b000000ffff              // 32-bit code
boot_gdt_end:
boot_gdt_pointer:
        .word   boot_gdt_end - boot_gdt - 1
        .long   boot_gdt

        .align  4096
boot_page_map:
        .quad   boot_pdpt + page_present_write
        .fill   511, 8, 0
boot_pdpt:
        .quad   boot_directories + 0x0000 + page_present_write
        .quad   boot_directories + 0x1000 + page_present_write
        .quad   boot_directories + 0x2000 + page_present_write
        .quad   boot_directories + 0x3000 + page_present_write
        .fill   508, 8, 0
boot_directories:
        .set    address, 0
        .rept   4 * 512
        .quad   address + page_present_write_large
        .set    address, address + 0x200000
        .endr

        .section .note.GNU-stack, "", @progbits
