BEGIN TRANSACTION;
CREATE TABLE "opaque_spent" (
	"customer" TEXT NOT NULL, 
	"day" TEXT NOT NULL, 
	"n" BIGINT NOT NULL, 
	"prev_n" BIGINT, 
	"total" TEXT NOT NULL, 
	"prev_total" TEXT, 
	"largest" TEXT NOT NULL, 
	"prev_largest" TEXT, 
	"note" TEXT NOT NULL, 
	"prev_note" TEXT, 
	txid BIGINT NOT NULL, 
	PRIMARY KEY ("customer", "day"), 
	CHECK (typeof("n") = 'integer'), 
	CHECK (typeof("total") = 'text'), 
	CHECK (typeof("largest") = 'text')
)
 WITHOUT ROWID

;
INSERT INTO "opaque_spent" VALUES('anna','2026-11-01',2,1,'4.50','3.50','3.50','3.50','late','first',3);
INSERT INTO "opaque_spent" VALUES('anna','2026-11-02',1,NULL,'4.25',NULL,'4.25',NULL,'',NULL,2);
INSERT INTO "opaque_spent" VALUES('ben','2026-11-01',1,NULL,'12.00',NULL,'12.00',NULL,'d''été',NULL,1);
INSERT INTO "opaque_spent" VALUES('cleo','2026-11-02',1,NULL,'7.00',NULL,'7.00',NULL,'x',NULL,3);
INSERT INTO "opaque_spent" VALUES('dora','2026-11-01',1,NULL,'1.25',NULL,'1.25',NULL,'note 1',NULL,1);
INSERT INTO "opaque_spent" VALUES('dora','2026-11-02',1,NULL,'2.25',NULL,'2.25',NULL,'note 2',NULL,1);
INSERT INTO "opaque_spent" VALUES('dora','2026-11-03',1,NULL,'3.25',NULL,'3.25',NULL,'note 3',NULL,2);
INSERT INTO "opaque_spent" VALUES('dora','2026-11-04',1,NULL,'4.25',NULL,'4.25',NULL,'note 4',NULL,2);
INSERT INTO "opaque_spent" VALUES('dora','2026-11-05',1,NULL,'5.25',NULL,'5.25',NULL,'note 5',NULL,3);
INSERT INTO "opaque_spent" VALUES('dora','2026-11-06',1,NULL,'6.25',NULL,'6.25',NULL,'note 6',NULL,3);
CREATE TABLE "transactional_spent" (
	"customer" TEXT NOT NULL, 
	"day" TEXT NOT NULL, 
	"n" BIGINT, 
	"total" TEXT, 
	"largest" TEXT, 
	"note" TEXT, 
	txid BIGINT NOT NULL, 
	PRIMARY KEY ("customer", "day"), 
	CHECK (typeof("n") = 'integer' OR "n" IS NULL), 
	CHECK (typeof("total") = 'text' OR "total" IS NULL), 
	CHECK (typeof("largest") = 'text' OR "largest" IS NULL)
)
 WITHOUT ROWID

;
INSERT INTO "transactional_spent" VALUES('anna','2026-11-01',2,'4.50','3.50','late',3);
INSERT INTO "transactional_spent" VALUES('anna','2026-11-02',1,'4.25','4.25','',2);
INSERT INTO "transactional_spent" VALUES('ben','2026-11-01',1,'12.00','12.00','d''été',1);
INSERT INTO "transactional_spent" VALUES('cleo','2026-11-02',1,'7.00','7.00','x',3);
INSERT INTO "transactional_spent" VALUES('dora','2026-11-01',1,'1.25','1.25','note 1',1);
INSERT INTO "transactional_spent" VALUES('dora','2026-11-02',1,'2.25','2.25','note 2',1);
INSERT INTO "transactional_spent" VALUES('dora','2026-11-03',1,'3.25','3.25','note 3',2);
INSERT INTO "transactional_spent" VALUES('dora','2026-11-04',1,'4.25','4.25','note 4',2);
INSERT INTO "transactional_spent" VALUES('dora','2026-11-05',1,'5.25','5.25','note 5',3);
INSERT INTO "transactional_spent" VALUES('dora','2026-11-06',1,'6.25','6.25','note 6',3);
CREATE TABLE txstream_alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT txstream_alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "txstream_alembic_version" VALUES('0004');
CREATE TABLE txstream_batch (
	topology VARCHAR(255) NOT NULL, 
	uuid VARCHAR(36) NOT NULL, 
	txid BIGINT NOT NULL, 
	attempt BIGINT NOT NULL, 
	semantics VARCHAR(32) NOT NULL, 
	status VARCHAR(16) NOT NULL, 
	metas TEXT NOT NULL, 
	tuples BIGINT NOT NULL, 
	keys BIGINT NOT NULL, 
	planned_at DATETIME NOT NULL, 
	processed_at DATETIME NOT NULL, 
	committed_at DATETIME, 
	error TEXT, 
	details TEXT, 
	PRIMARY KEY (topology, txid)
);
INSERT INTO "txstream_batch" VALUES('opaque-orders','4baa93fc-8b7a-4bfc-ab23-fbfa1f5ec49f',1,4294967297,'opaque','committed','{"partitions":{"p0":{"end":2,"start":0},"p1":{"end":2,"start":0}}}',4,4,'2026-11-25 22:03:24.731402','2026-11-25 22:03:24.859737','2026-11-25 22:03:24.906800',NULL,'{"attempts":[],"digests":{"opaque_spent":{"keys":"6339862ca7b32306","rows":4,"values":{"largest":"e182eefaa909cefc","n":"d6584ab69ba5f402","note":"af0f8606e9ba2f2a","total":"e182eefaa909cefc"}}},"path":"driver","timings":{"job":0.115284,"merge":0.0012,"plan":0.00146,"process":0.114448,"read":0.000123}}');
INSERT INTO "txstream_batch" VALUES('opaque-orders','4baa93fc-8b7a-4bfc-ab23-fbfa1f5ec49f',2,4294967299,'opaque','committed','{"excluded":[["p0",3,"check","ValueError"]],"partitions":{"p0":{"end":4,"start":2},"p1":{"end":4,"start":2}}}',3,3,'2026-11-25 22:03:24.753291','2026-11-25 22:03:25.044090','2026-11-25 22:03:25.055822','txid 2 attempt 1.2, component ''check'', task 0: ValueError: this order is spoilt (in release_topologies.py, line 57), while processing Tuple(customer=''ben'', day=datetime.date(2026, 11, 2), amount=Decimal(''0.01''), note=''spoilt'')','{"attempts":[{"attempt":4294967298,"error":"txid 2 attempt 1.2, component ''check'', task 0: ValueError: this order is spoilt (in release_topologies.py, line 57), while processing Tuple(customer=''ben'', day=datetime.date(2026, 11, 2), amount=Decimal(''0.01''), note=''spoilt'')","failed_at":"2026-11-25T22:03:24.752+00:00","same":true}],"digests":{"opaque_spent":{"keys":"f18a10a33b5b64de","rows":3,"values":{"largest":"3dce1b7dce7e597c","n":"3f02583668068b4a","note":"2a6801217f108c5a","total":"3dce1b7dce7e597c"}}},"path":"driver","timings":{"job":0.02615,"merge":0.000969,"plan":0.000675,"process":0.02556,"read":9.8e-05}}');
INSERT INTO "txstream_batch" VALUES('opaque-orders','4baa93fc-8b7a-4bfc-ab23-fbfa1f5ec49f',3,4294967300,'opaque','committed','{"partitions":{"p0":{"end":6,"start":4},"p1":{"end":6,"start":4}}}',4,4,'2026-11-25 22:03:25.077056','2026-11-25 22:03:25.085608','2026-11-25 22:03:25.088315',NULL,'{"attempts":[],"digests":{"opaque_spent":{"keys":"0e430cd0e8f751ec","rows":4,"values":{"largest":"74911d7de0821102","n":"05efbec3ebac86a4","note":"cd011908d7746df1","total":"74911d7de0821102"}}},"path":"driver","timings":{"job":0.006869,"merge":0.000619,"plan":0.000187,"process":0.006155,"read":0.000215}}');
INSERT INTO "txstream_batch" VALUES('transactional-orders','17214ba8-ef54-4435-8f6f-4ace0c072a81',1,4294967297,'transactional','committed','{"partitions":{"p0":{"end":2,"start":0},"p1":{"end":2,"start":0}}}',4,4,'2026-11-25 22:03:25.264232','2026-11-25 22:03:25.274196','2026-11-25 22:03:25.280350',NULL,'{"attempts":[],"digests":{"transactional_spent":{"keys":"6339862ca7b32306","rows":4,"values":{"largest":"e182eefaa909cefc","n":"d6584ab69ba5f402","note":"af0f8606e9ba2f2a","total":"e182eefaa909cefc"}}},"path":"driver","timings":{"job":0.007427,"merge":0.000706,"persist":0.000108,"plan":0.000243,"process":0.003809,"read":0.002808}}');
INSERT INTO "txstream_batch" VALUES('transactional-orders','17214ba8-ef54-4435-8f6f-4ace0c072a81',2,4294967299,'transactional','committed','{"excluded":[["p0",3,"check","ValueError"]],"partitions":{"p0":{"end":4,"start":2},"p1":{"end":4,"start":2}}}',3,3,'2026-11-25 22:03:25.265490','2026-11-25 22:03:25.454036','2026-11-25 22:03:25.456406','txid 2 attempt 1.2, component ''check'', task 0: ValueError: this order is spoilt (in release_topologies.py, line 57), while processing Tuple(customer=''ben'', day=datetime.date(2026, 11, 2), amount=Decimal(''0.01''), note=''spoilt'')','{"attempts":[{"attempt":4294967298,"error":"txid 2 attempt 1.2, component ''check'', task 0: ValueError: this order is spoilt (in release_topologies.py, line 57), while processing Tuple(customer=''ben'', day=datetime.date(2026, 11, 2), amount=Decimal(''0.01''), note=''spoilt'')","failed_at":"2026-11-25T22:03:25.269+00:00","same":true}],"digests":{"transactional_spent":{"keys":"f18a10a33b5b64de","rows":3,"values":{"largest":"3dce1b7dce7e597c","n":"3f02583668068b4a","note":"2a6801217f108c5a","total":"3dce1b7dce7e597c"}}},"path":"driver","timings":{"job":0.010855,"merge":0.000855,"persist":8.3e-05,"plan":0.000143,"process":0.010263,"read":0.000107}}');
INSERT INTO "txstream_batch" VALUES('transactional-orders','17214ba8-ef54-4435-8f6f-4ace0c072a81',3,4294967300,'transactional','committed','{"partitions":{"p0":{"end":6,"start":4},"p1":{"end":6,"start":4}}}',4,4,'2026-11-25 22:03:25.468239','2026-11-25 22:03:25.474883','2026-11-25 22:03:25.477967',NULL,'{"attempts":[],"digests":{"transactional_spent":{"keys":"0e430cd0e8f751ec","rows":4,"values":{"largest":"74911d7de0821102","n":"05efbec3ebac86a4","note":"cd011908d7746df1","total":"74911d7de0821102"}}},"path":"driver","timings":{"job":0.005529,"merge":0.000492,"persist":0.000102,"plan":0.000178,"process":0.00487,"read":6.7e-05}}');
CREATE TABLE txstream_dead_letter (
	topology VARCHAR(255) NOT NULL, 
	uuid VARCHAR(36) NOT NULL, 
	txid BIGINT NOT NULL, 
	place VARCHAR(400) NOT NULL, 
	attempt BIGINT NOT NULL, 
	status VARCHAR(64) NOT NULL, 
	"when" DATETIME NOT NULL, 
	topic TEXT, 
	partition BIGINT, 
	"offset" BIGINT, 
	timestamp BIGINT, 
	component TEXT NOT NULL, 
	exception TEXT NOT NULL, 
	message TEXT NOT NULL, 
	traceback TEXT NOT NULL, 
	"key" BLOB, 
	headers BLOB, 
	value BLOB, 
	PRIMARY KEY (topology, uuid, txid, place)
);
INSERT INTO "txstream_dead_letter" VALUES('opaque-orders','4baa93fc-8b7a-4bfc-ab23-fbfa1f5ec49f',2,'p0@3',4294967299,'dead','2026-11-25 22:03:25.055822',NULL,NULL,3,NULL,'check','ValueError','ValueError: this order is spoilt (in release_topologies.py, line 57)','Traceback (on the executor, most recent call last):
  File "/srv/txstream/tests/support/release_topologies.py", line 57, in execute
    raise ValueError("this order is spoilt")
ValueError: this order is spoilt',NULL,NULL,X'7B22637573746F6D6572223A202262656E222C2022646179223A2022323032362D31312D3032222C2022616D6F756E74223A2022302E3031222C20226E6F7465223A202273706F696C74227D');
INSERT INTO "txstream_dead_letter" VALUES('transactional-orders','17214ba8-ef54-4435-8f6f-4ace0c072a81',2,'p0@3',4294967299,'dead','2026-11-25 22:03:25.456406',NULL,NULL,3,NULL,'check','ValueError','ValueError: this order is spoilt (in release_topologies.py, line 57)','Traceback (on the executor, most recent call last):
  File "/srv/txstream/tests/support/release_topologies.py", line 57, in execute
    raise ValueError("this order is spoilt")
ValueError: this order is spoilt',NULL,NULL,X'7B22637573746F6D6572223A202262656E222C2022646179223A2022323032362D31312D3032222C2022616D6F756E74223A2022302E3031222C20226E6F7465223A202273706F696C74227D');
CREATE TABLE txstream_fence (
	topology VARCHAR(255) NOT NULL, 
	uuid VARCHAR(36) NOT NULL, 
	attempt BIGINT NOT NULL, 
	identity TEXT, 
	PRIMARY KEY (topology)
);
INSERT INTO "txstream_fence" VALUES('opaque-orders','4baa93fc-8b7a-4bfc-ab23-fbfa1f5ec49f',4294967300,'{"databases":["sqlite:////srv/orders/state.db"],"identity":{"created_at":"2026-11-25T22:03:24+00:00","format":1,"semantics":"opaque","source":{"output":"customer string, day date, amount decimal(10,2), note string"},"spout":"txstream.spouts.memory.MemorySpout","tables":["opaque_spent"],"uuid":"4baa93fc-8b7a-4bfc-ab23-fbfa1f5ec49f"}}');
INSERT INTO "txstream_fence" VALUES('transactional-orders','17214ba8-ef54-4435-8f6f-4ace0c072a81',4294967300,'{"databases":["sqlite:////srv/orders/state.db"],"identity":{"created_at":"2026-11-25T22:03:25+00:00","format":1,"semantics":"transactional","source":{"output":"customer string, day date, amount decimal(10,2), note string"},"spout":"txstream.spouts.memory.MemorySpout","tables":["transactional_spent"],"uuid":"17214ba8-ef54-4435-8f6f-4ace0c072a81"}}');
CREATE TABLE txstream_table (
	table_name VARCHAR(255) NOT NULL, 
	topology VARCHAR(255) NOT NULL, 
	uuid VARCHAR(36) NOT NULL, 
	declaration TEXT NOT NULL, 
	created_at DATETIME NOT NULL, 
	PRIMARY KEY (table_name)
);
INSERT INTO "txstream_table" VALUES('opaque_spent','opaque-orders','4baa93fc-8b7a-4bfc-ab23-fbfa1f5ec49f','{"key":"customer string, day date","semantics":"opaque","value":"n bigint, total decimal(12,2), largest decimal(10,2), note string"}','2026-11-25 22:03:24.688224');
INSERT INTO "txstream_table" VALUES('transactional_spent','transactional-orders','17214ba8-ef54-4435-8f6f-4ace0c072a81','{"key":"customer string, day date","semantics":"transactional","value":"n bigint, total decimal(12,2), largest decimal(10,2), note string"}','2026-11-25 22:03:25.230610');
COMMIT;
