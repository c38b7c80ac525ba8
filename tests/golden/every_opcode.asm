# Every opcode, as the printer writes it.
MTE2    COPY        L1[128] DDR[4096]  length=56 count=8 sstride=56 dstride=64 count2=2 sstride2=3136 dstride2=512  f16 @3.12.1
MTE2    SET         core=0 engine=MTE1 id=1
MTE1    WAIT        core=0 engine=MTE2 id=1
MTE1    IM2COL      L0A[0] L1[128]  h=56 w=56 pitch=64 plane=512 kh=3 kw=3 sh=1 sw=1 dh=1 dw=1 pt=1 pl=1 ow=56 moff=112 m=120 mpad=128 k=8 lanes=16  f16 @3.12
MTE1    COPY        L0B[64] L1[640]  length=128 count=8 sstride=576 dstride=128 count2=1  f16 @3.12
MTE1    FRACTAL     L0B[64] L1[640]  plane=197 pixels=197 k=4 n1=13  f16 @3.12
MTE1    FRACTAL     L0B[64] L1[640]  plane=197 pixels=21 k=13 n1=4 transpose=1  f16 @3.12
MTE1    IM2COL      L0A[0] L1[128]  h=56 w=56 pitch=7 plane=392 kh=3 kw=3 sh=2 sw=2 dh=1 dw=1 pt=1 pl=1 ow=28 m=112 mpad=112 k=2 lanes=4 pad=128  i8 @3.12
MTE1    FRACTAL     L0B[64] L1[640]  plane=197 pixels=197 k=4 n1=13 pad=3  u8 @3.12
CUBE    MMAD        L0C[0] L0A[0] L0B[64]  mpad=128 k=8 n1=8 acc=1  f16 @3.12
CUBE    MMAD        L0C[0] L0A[0] L0B[64]  mpad=128 k=8 n1=8 right=i8  u8 @3.12
FIXPIPE FIXPIPE     UB[0] L0C[0] UB[512] -  m=120 mpad=128 n1=8 dplane=120 act=1  f16 @3.12
FIXPIPE FIXPIPE     L1[0] L0C[0] - UB[64]  m=120 mpad=128 n1=8 dplane=120 rplane=120  f32 @3.12
FIXPIPE FIXPIPE     UB[0] L0C[0] UB[512] -  m=120 mpad=128 n1=8 dplane=120 sums=i32 scale=528 zero=-5 low=-128 high=127  i8 @3.12
FIXPIPE FIXPIPE     UB[0] L0C[0] UB[512] -  m=120 mpad=128 n1=8 dplane=120 act=1 sums=i32 scale=528  f16 @3.12
FIXPIPE FIXPIPE     UB[0] L0C[0] - -  m=120 mpad=128 n1=8 dplane=120 sums=i32 scale=-1  i32 @3.12
VECTOR  VFILL       UB[0]  blocks=8 repeats=2 dbs=1 drs=8 imm=-65504.0  f16
VECTOR  VFILL       UB[0]  blocks=8 repeats=2 dbs=1 drs=8 imm=-128.0  i8
VECTOR  VCOPY       UB[0] UB[64]  blocks=8 repeats=4 dbs=1 drs=8 s0bs=1 s0rs=8  f16 @4.0
VECTOR  VRELU       UB[0] UB[64]  blocks=8 repeats=4 dbs=1 drs=8 s0bs=1 s0rs=8  f16 @4.0
VECTOR  VEXP        UB[0] UB[64]  blocks=8 repeats=4 dbs=1 drs=8 s0bs=1 s0rs=8  f16 @4.0
VECTOR  VLN         UB[0] UB[64]  blocks=8 repeats=4 dbs=1 drs=8 s0bs=1 s0rs=8  f16 @4.0
VECTOR  VSQRT       UB[0] UB[64]  blocks=8 repeats=4 dbs=1 drs=8 s0bs=1 s0rs=8  f16 @4.0
VECTOR  VRECIPROCAL UB[0] UB[64]  blocks=8 repeats=4 dbs=1 drs=8 s0bs=1 s0rs=8  f16 @4.0
VECTOR  VADDS       UB[0] UB[64]  blocks=8 repeats=4 dbs=1 drs=8 s0bs=1 s0rs=8 imm=0.1  f16 @4.0
VECTOR  VMULS       UB[0] UB[64]  blocks=8 repeats=4 dbs=1 drs=8 s0bs=1 s0rs=8 imm=-0.5  f16 @4.0
VECTOR  VMAXS       UB[0] UB[64]  blocks=8 repeats=4 dbs=1 drs=8 s0bs=1 s0rs=8 imm=0x7fc00001  f16 @4.0
VECTOR  VMINS       UB[0] UB[64]  blocks=8 repeats=4 dbs=1 drs=8 s0bs=1 s0rs=8 imm=6.0  f16 @4.0
VECTOR  VADD        UB[0] UB[64] UB[128]  blocks=8 repeats=4 dbs=1 drs=8 s0bs=1 s0rs=8 s1bs=1 s1rs=8  f16 @4.0
VECTOR  VSUB        UB[0] UB[64] UB[128]  blocks=8 repeats=4 dbs=1 drs=8 s0bs=1 s0rs=8 s1bs=1 s1rs=8  f16 @4.0
VECTOR  VMUL        UB[0] UB[64] UB[128]  blocks=8 repeats=4 dbs=1 drs=8 s0bs=1 s0rs=8 s1bs=1 s1rs=8  f16 @4.0
VECTOR  VMAX        UB[0] UB[64] UB[128]  blocks=8 repeats=4 dbs=1 drs=8 s0bs=1 s0rs=8 s1bs=1 s1rs=8  f16 @4.0
VECTOR  VMIN        UB[0] UB[64] UB[128]  blocks=8 repeats=4 dbs=1 drs=8 s0bs=1 s0rs=8 s1bs=1 s1rs=8  f16 @4.0
VECTOR  VDIV        UB[0] UB[64] UB[128]  blocks=8 repeats=4 dbs=1 drs=8 s0bs=1 s0rs=8 s1bs=1 s1rs=8  f16 @4.0
VECTOR  VMADD       UB[0] UB[64] UB[128] UB[192]  blocks=8 repeats=4 dbs=1 drs=8 s0bs=1 s0rs=8 s1bs=1 s1rs=8 s2bs=1 s2rs=8  f16 @4.0
VECTOR  VLANE_MAX   UB[0] UB[64]  blocks=8 repeats=4 dbs=1 drs=8 s0bs=1 s0rs=8  f16 @4.0
VECTOR  VLANE_SUM   UB[0] UB[64]  blocks=8 repeats=4 dbs=1 drs=8 s0bs=1 s0rs=8  f16 @4.0
VECTOR  VLANE_ADD   UB[0] UB[64] UB[0]  blocks=8 repeats=4 dbs=1 drs=8 s0bs=1 s0rs=8 s1bs=1 s1rs=8  f32 @4.0
VECTOR  VLUT        UB[0] UB[64] UB[128]  blocks=8 repeats=4 dbs=1 drs=8 s0bs=1 s0rs=8  u8 @4.0
VECTOR  VCONVERT    UB[0] UB[64]  blocks=8 repeats=4 dbs=1 drs=8 s0bs=1 s0rs=8 imm=f32  f16 @4.0
VECTOR  VCONVERT    UB[0] UB[64]  blocks=8 repeats=4 dbs=1 drs=32 s0bs=1 s0rs=8 imm=i8  i32 @4.0
VECTOR  VADD        UB[0] UB[64] UB[128]  blocks=8 repeats=4 dbs=1 drs=8 s0bs=1 s0rs=8 s1bs=1 s1rs=8  i32 @4.0
CUBE    MMAD_IM2COL L0C[0] L1[100] L1[640]  h=9 w=14 pitch=14 plane=126 kernel=3.3 stride=2.1 dilation=1.1 padding=1.-2 n1=2 acc=1 right=i8 rstride=288 ow=14 m=60 mpad=64 koff=3 k=9 lanes=32 ring=12 first=4 pad=128  u8 @3.12
FIXPIPE FIXPIPE     L1[700] L0C[0] L1[8] -  m=60 mpad=64 n1=2 dplane=60 sums=i32 scale=16 low=-128 high=127 side=L1  i8 @3.12
VECTOR  VFILL       L1[3]  blocks=8 repeats=1 dbs=1 drs=8 imm=0.5  f32
MTE1    COPY        L1[0] L1[640]  length=32 count=1 count2=1  i8
